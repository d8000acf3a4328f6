"""The checks of order, cursors, locks, deliveries and stalls themselves: what they must see, and what they
must not hold against anybody."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from holdfast_chaos.checks import faultless, jobs, locks, log, stalls
from holdfast_chaos.checks.timeline import Timeline
from holdfast_chaos.final_state import FinalState, JobState, Logged, Terms
from holdfast_chaos.history import Call
from holdfast_chaos.report import Summary

START, TTL = datetime(2030, 1, 1, tzinfo=UTC), timedelta(minutes=1)
OWNER = ("orders", "billing")


class Book:
    """Calls one after the other, unless a moment is named."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._moments = count(1)

    def add(self, verb: str, items: list[Any], answers: list[Any], at: int = 0, ended: int = 0) -> None:
        at, ended = at or next(self._moments), ended or next(self._moments)
        self.calls.append(Call("p", verb, items, at, "ok", answers, ended))

    def publish(self, *names: str, key: str | None = "k", **when: int) -> None:
        items = [{"channel": "orders", "id": name, "key": key, "data": "{}"} for name in names]
        self.add("publish", items, [{"position": name, "duplicate": False} for name in names], **when)

    def claim(self, *names: str, token: int = 1, **when: int) -> None:
        self.add("claim", [], [_job(name, token) for name in names], **when)

    def end(self, verb: str, *names: str, token: int = 1, **when: int) -> None:
        self.add(verb, [_job(name, token) for name in names], [True] * len(names), **when)

    def lock(self, token: int, at: timedelta) -> None:
        item = {"lock": "sweeper", "owner": f"{token}", "ttl": TTL.total_seconds()}
        self.add("lock", [item], [_lock(token, at + TTL)])


def _job(name: str, token: int) -> dict[str, Any]:
    owner = {"channel": OWNER[0], "consumer": OWNER[1]}
    return owner | {"job": name, "position": name, "id": name, "key": None, "token": token, "data": "{}"}


def _lock(token: int, until: timedelta) -> dict[str, Any]:
    return {"lock": "sweeper", "token": token, "until": (START + until).isoformat()}


def evidence(*, ordered: bool = True, **given: Any) -> FinalState:
    terms = {OWNER: Terms(5, 3, timedelta(minutes=5), ordered, None, {})}
    return FinalState([], [], terms, lambda position: position, **given)


# order


def one_by_one(book: Book) -> None:
    for name in ("a", "b"):
        book.claim(name)
        book.end("complete", name)


def both_at_once(book: Book) -> None:
    book.claim("a", "b")
    book.end("complete", "b", "a")


def after_a_retry(book: Book) -> None:
    book.claim("a")
    book.end("retry", "a")
    book.claim("b")
    book.claim("a", token=2)
    book.end("complete", "a", token=2)


def after_a_revival(book: Book) -> None:
    """Nobody was told how the first one died; its token rose with that."""
    book.claim("a")
    book.claim("b")
    book.end("complete", "b")
    book.claim("a", token=3)
    book.end("complete", "a", token=3)


def after_two_revivals(book: Book) -> None:
    """As many leases as its first known end has in its token, but not all of them before that."""
    after_a_revival(book)
    book.claim("a", token=5)
    book.end("bury", "a", token=5)


@pytest.mark.parametrize(
    ("play", "found"),
    [(one_by_one, 0), (both_at_once, 1), (after_a_retry, 1), (after_a_revival, 0), (after_two_revivals, 0)],
)
def test_events_of_a_key_are_handed_out_one_by_one(play: Any, found: int) -> None:
    book = Book()
    book.publish("a", "b")
    play(book)
    assert len(list(log.overtaken(book.calls, evidence()))) == found
    assert list(log.overtaken(book.calls, evidence(ordered=False))) == []


def test_events_of_two_keys_or_of_none_may_overtake_each_other() -> None:
    book = Book()
    book.publish("a", key="one")
    book.publish("b", key="two")
    book.publish("c", "d", key=None)
    book.claim("a", "b", "c", "d")
    book.end("complete", "d", "c", "b", "a")
    assert list(log.overtaken(book.calls, evidence())) == []


def test_an_event_that_committed_later_may_be_overtaken() -> None:
    book = Book()
    book.publish("a", at=1, ended=9)
    book.publish("b", at=2, ended=3)
    book.claim("b", at=4, ended=5)
    book.claim("a", at=10, ended=11)
    book.end("complete", "a", at=12, ended=13)
    assert list(log.overtaken(book.calls, evidence())) == []


# cursors


def test_a_cursor_that_passed_an_event_is_found() -> None:
    book = Book()
    book.add("archived", [{"channel": "orders", "consumer": "archiver", "id": "b"}], [])
    events = [Logged("orders", name, name, name, "{}") for name in "abc"]
    store = FinalState(events, [], {}, lambda position: position, cursors={("orders", "archiver"): "b"})
    [message] = log.passed(book.calls, store)
    assert "event a " in message
    assert list(log.passed([], store)) == [], "of one that keeps no notes nothing is known"


# leases and locks


def test_an_answer_that_was_on_its_way_when_a_newer_token_was_issued_is_not_stale() -> None:
    book = Book()
    book.claim("a", at=1, ended=2)
    book.end("complete", "a", at=3, ended=9)
    book.claim("a", token=2, at=4, ended=5)
    assert list(jobs.stale(book.calls)) == []
    book.end("extend", "a", at=6, ended=7)
    assert len(list(jobs.stale(book.calls))) == 1


@pytest.mark.parametrize(
    ("second", "freed", "found"), [(TTL, False, 0), (TTL / 2, False, 1), (TTL / 2, True, 0)]
)
def test_a_lock_has_one_holder_at_a_time(second: timedelta, freed: bool, found: int) -> None:
    book = Book()
    book.lock(1, timedelta(0))
    book.add("unlock", [_lock(1, TTL)], [freed])
    book.lock(2, second)
    assert len(list(locks.overlapping(book.calls))) == found


def test_a_renewed_lock_is_held_for_longer() -> None:
    book = Book()
    book.lock(1, timedelta(0))
    book.add("renew", [_lock(1, TTL)], [_lock(1, 2 * TTL)])
    book.lock(2, 1.5 * TTL)
    assert len(list(locks.overlapping(book.calls))) == 1


@pytest.mark.parametrize(("token", "found"), [(1, 1), (2, 0)])
def test_what_is_trimmed_under_an_outdated_token_is_found(token: int, found: int) -> None:
    book = Book()
    book.lock(1, timedelta(0))
    book.add("trim", [{"channel": "orders", "lock": "sweeper", "token": 1}], [3])
    book.lock(2, TTL)
    book.add("trim", [{"channel": "orders", "lock": "sweeper", "token": token}], [3])
    assert len(list(locks.outdated(book.calls))) == found


# deliveries


def told(book: Book, token: int, **more: Any) -> None:
    """A claim as a worker is told of it."""
    answer = _job("a", token) | {"abandonments": 0} | more
    book.add("claim", [], [answer])


@pytest.mark.parametrize(
    ("verb", "found"), [("retry", 0), ("requeue", 0), ("revive", 0), ("extend", 1), ("cancel", 1)]
)
def test_a_job_comes_again_only_where_a_verb_asked_for_it(verb: str, found: int) -> None:
    book = Book()
    told(book, 1)
    book.end(verb, "a")
    told(book, 2)
    assert len(list(faultless.redelivered(book.calls, evidence()))) == found


def test_a_retry_without_an_answer_was_asked_for_too() -> None:
    """A worker that stops gives up waiting for it, and the store may have taken it all the same."""
    book = Book()
    told(book, 1)
    book.calls.append(Call("p", "retry", [_job("a", 1)], at=3))
    told(book, 2)
    book.add("complete", [_job("a", 1)], [False])
    assert list(faultless.redelivered(book.calls, evidence())) == []
    assert list(faultless.lost(book.calls, evidence())) == []


def test_a_requeue_long_before_is_no_reason() -> None:
    book = Book()
    book.end("requeue", "a")
    told(book, 1)
    told(book, 2)
    assert len(list(faultless.redelivered(book.calls, evidence()))) == 1


def test_an_abandonment_and_a_lease_that_nobody_has_are_found() -> None:
    book = Book()
    told(book, 2, abandonments=1)
    row = JobState(*OWNER, "b", "leased", 1, 0, 1, None)
    store = FinalState([], [row], evidence().terms, lambda position: position)
    assert len(list(faultless.abandoned(book.calls, store))) == 1
    assert len(list(faultless.unheld(book.calls, store))) == 1


def test_a_lease_that_was_lost_to_nobody_is_found() -> None:
    book = Book()
    book.add("complete", [_job("a", 1)], [False])
    assert len(list(faultless.lost(book.calls, evidence()))) == 1
    book.end("requeue", "a")
    assert list(faultless.lost(book.calls, evidence())) == []


def test_to_extend_what_has_just_ended_is_no_loss() -> None:
    book = Book()
    book.end("complete", "a")
    book.add("extend", [_job("a", 1)], [False])
    assert list(faultless.lost(book.calls, evidence())) == []


# stalls: moments are seconds


class Day(Book):
    """Calls at named seconds; the consumer is there from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.call("subscribe", 0, {"channel": OWNER[0], "consumer": OWNER[1]}, 1)

    def call(self, verb: str, second: float, item: dict[str, Any], answer: Any, took: float = 0.01) -> None:
        moments = int(second * 1e9) + 1, int((second + took) * 1e9) + 1
        self.calls.append(Call("p", verb, [item], moments[0], "ok", [answer], moments[1]))

    def published(self, second: float, *names: str) -> None:
        for name in names:
            item = {"channel": OWNER[0], "id": name, "key": "k", "data": "{}"}
            self.call("publish", second, item, {"position": name, "duplicate": False})

    def polled(
        self, *seconds: float, got: str = "", limit: int = 2, took: float = 0.01, by: str = "p"
    ) -> None:
        for second in seconds:
            about = {"channel": OWNER[0], "consumer": OWNER[1], "limit": limit}
            at, ended = int(second * 1e9) + 1, int((second + took) * 1e9) + 1
            answers = [_job(name, 1) | {"abandonments": 0} for name in got]
            self.calls.append(Call(by, "claim", [], at, "ok", answers, ended, about))

    def did(self, verb: str, second: float, name: str = "a", **more: Any) -> None:
        self.call(verb, second, _job(name, 1) | more, True)

    def stalled(self, *, ordered: bool = False) -> int:
        waits = stalls.waits(self.calls, evidence(ordered=ordered), Timeline(self.calls))
        return len(list(stalls.stalled(waits)))


def test_a_ready_job_beside_an_idle_worker_for_two_seconds_is_a_stall() -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, 1.6, 2.1, 2.6, 3.0)
    day.polled(3.2, got="a")
    assert day.stalled() == 1


def test_a_job_that_nobody_ever_gets_is_a_stall() -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, 2.1, 3.1, 4.1)
    assert day.stalled() == 1


@pytest.mark.parametrize(("limit", "got", "found"), [(1, "x", 0), (2, "x", 1)], ids=["full", "with room"])
def test_workers_that_have_no_room_are_not_idle(limit: int, got: str, found: int) -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, 1.6, 2.1, 2.6, 3.1, 3.6, got=got, limit=limit)
    day.polled(3.9, got="a", limit=limit)
    assert day.stalled() == found


def test_a_worker_that_does_not_ask_is_idle_unless_it_is_busy() -> None:
    day = Day()
    day.polled(0.5)
    day.published(1, "a")
    day.polled(4, got="a")
    assert day.stalled() == 1
    day = Day()
    day.published(0.1, "b")
    day.polled(0.5, got="b")
    day.published(1, "a")
    day.did("complete", 3.9, "b")
    day.polled(4, got="a")
    assert day.stalled() == 0


@pytest.mark.parametrize("verbs", [("pause", "resume"), ("subscribe", "subscribe")])
def test_a_pause_or_a_change_of_the_consumer_is_no_stall(verbs: tuple[str, str]) -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, 1.6, 2.1, 2.6, 3.1)
    day.did(verbs[0], 1.5)
    day.did(verbs[1], 2.5)
    day.polled(3.3, got="a")
    assert day.stalled() == 0


def test_what_is_due_later_or_waits_for_its_retry_is_not_ready_before() -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, got="a")
    day.did("retry", 1.2, delay=3.0)
    day.polled(1.3, 2.0, 3.0, 4.0)
    day.polled(4.5, got="a")
    assert day.stalled() == 0


def test_a_cancelled_job_waits_for_nobody() -> None:
    day = Day()
    day.published(1, "a")
    day.call("cancel", 2, {"channel": OWNER[0], "consumer": None, "id": "a"}, 1)
    day.polled(1.1, 2.1, 3.1, 4.1)
    assert day.stalled() == 0


def test_a_job_of_an_emptied_consumer_may_be_cancelled_and_waits_for_nobody() -> None:
    for cancelled, found in ((1, 0), (0, 1)):
        day = Day()
        day.published(1, "a")
        day.call("empty", 2, {"channel": OWNER[0], "consumer": OWNER[1]}, cancelled)
        day.polled(1.1, 2.1, 3.1, 4.1)
        assert day.stalled() == found


def test_where_keys_are_ordered_a_job_waits_for_the_one_before_it() -> None:
    day = Day()
    day.published(1, "a", "b")
    day.polled(1.2, got="a", by="q")
    day.polled(1.1, 1.6, 2.1, 2.6, 3.1)
    day.did("complete", 3.2, "a")
    day.polled(3.3, got="b")
    assert day.stalled(ordered=True) == 0
    assert day.stalled(ordered=False) == 1


@pytest.mark.parametrize(("slow", "found"), [(1.0, 1), (30.0, 0)])
def test_on_a_slow_machine_a_second_counts_for_less(slow: float, found: int) -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, 1.6, 2.1, 2.6, 3.1)
    day.polled(3.3, got="a")
    for beat in range(30):
        moment = int(beat * 0.2 * 1e9)
        day.calls.append(Call("heartbeat", "beat", [{"slow": slow}], moment, "ok", [], moment))
    assert day.stalled() == found


@pytest.mark.parametrize("process", ["heartbeat", "p"])
def test_while_the_machine_or_the_worker_stands_still_nobody_is_idle(process: str) -> None:
    day = Day()
    day.published(1, "a")
    day.polled(1.1, 1.6, 2.9)
    day.polled(3.3, got="a")
    for beat in (0, 0.5, 1, 1.5, 2.8, 3.3, 3.5):
        moment = int(beat * 1e9)
        day.calls.append(Call(process, "beat", [{"slow": 1.0}], moment, "ok", [], moment))
    assert day.stalled() == 0


# errors


@pytest.mark.parametrize(
    ("verb", "error", "found"),
    [("publish", "Overloaded", 0), ("claim", "UniqueViolation", 1), ("claim", "Unavailable", 1)],
)
def test_only_documented_errors_may_be_raised(verb: str, error: str, found: int) -> None:
    book = Book()
    book.add("raised", [{"verb": verb, "error": error, "message": "", "began": 1}], [])
    assert len(list(faultless.raised(book.calls, Timeline(book.calls)))) == found


@pytest.mark.parametrize(
    ("message", "found"),
    [
        ("orders/billing: attempt 1 at event e failed: Terminal: no use", 0),
        ("event e of orders failed for good: reason rejected in duckdb_insert at attempt 1: no", 0),
        ("poll failed: no", 1),
    ],
)
def test_only_expected_warnings_may_be_logged(message: str, found: int) -> None:
    book = Book()
    book.add("logged", [{"level": "WARNING", "message": message}], [])
    assert len(list(faultless.logged(book.calls, Timeline(book.calls)))) == found


def test_what_a_slow_machine_excuses_is_counted() -> None:
    book = Book()
    for beat in range(30):
        moment = int(beat * 1e9)
        book.calls.append(Call("heartbeat", "beat", [{"slow": 1.0}], moment, "ok", [], moment))
    for error in ("Unavailable", "UniqueViolation"):
        item = {"verb": "claim", "error": error, "message": "", "began": int(5e9)}
        book.calls.append(Call("p", "raised", [item], int(15e9), "ok", [], int(15e9)))
    timeline = Timeline(book.calls)
    assert (timeline.seconds, timeline.lost) == (29, 29), "a second between beats is a standstill"
    assert len(list(faultless.raised(book.calls, timeline))) == 1
    assert faultless.excused(book.calls, timeline) == 1
    account = Summary("nats", excused=timeline.lost / timeline.seconds)
    assert account.holds
    assert not account.conclusive
