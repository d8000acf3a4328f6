"""The judges of order, cursors and locks themselves: what they must see, and what they must not hold against
anybody."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from holdfast.chaos.evidence import Evidence, Logged, Terms
from holdfast.chaos.history import Call
from holdfast.chaos.judge import cursor, jobs, locks, order

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


def evidence(*, ordered: bool = True, **given: Any) -> Evidence:
    terms = {OWNER: Terms(5, 3, timedelta(minutes=5), ordered, None, {})}
    return Evidence([], [], terms, lambda position: position, **given)


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
    assert len(list(order.overtaken(book.calls, evidence()))) == found
    assert list(order.overtaken(book.calls, evidence(ordered=False))) == []


def test_events_of_two_keys_or_of_none_may_overtake_each_other() -> None:
    book = Book()
    book.publish("a", key="one")
    book.publish("b", key="two")
    book.publish("c", "d", key=None)
    book.claim("a", "b", "c", "d")
    book.end("complete", "d", "c", "b", "a")
    assert list(order.overtaken(book.calls, evidence())) == []


def test_an_event_that_committed_later_may_be_overtaken() -> None:
    book = Book()
    book.publish("a", at=1, ended=9)
    book.publish("b", at=2, ended=3)
    book.claim("b", at=4, ended=5)
    book.claim("a", at=10, ended=11)
    book.end("complete", "a", at=12, ended=13)
    assert list(order.overtaken(book.calls, evidence())) == []


# cursors


def test_a_cursor_that_passed_an_event_is_found() -> None:
    book = Book()
    book.add("archived", [{"channel": "orders", "consumer": "archiver", "id": "b"}], [])
    log = [Logged("orders", name, name, name, "{}") for name in "abc"]
    store = Evidence(log, [], {}, lambda position: position, cursors={("orders", "archiver"): "b"})
    [message] = cursor.passed(book.calls, store)
    assert "event a " in message
    assert list(cursor.passed([], store)) == [], "of one that keeps no notes nothing is known"


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
