"""Lists of dead letters: which are meant, the latest first, page by page; and one of them with its event."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from dead_helpers import EVERYTHING, bury_all, die, listed, names

import holdfast
from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.decide import describe
from holdfast.model.event import Event
from holdfast.model.job import Reason
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    fail,
    publish,
    record,
    subscribe,
)

MAIL = "mail"
NO_IDS = ("", "0", "-1", "nonsense", "1" * 40, "orders/1", "ü")


async def test_an_empty_store_has_an_empty_list(backend: Backend) -> None:
    page = await backend.deadletters.page(EVERYTHING, None, 10)
    assert (page.letters, page.after) == ([], None)


async def test_the_list_tells_what_the_job_tells(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", priority=3)
    assert await fail(backend, await claim_one(backend))
    assert await bury(backend, await claim_one(backend))
    [letter] = await listed(backend)
    assert letter.record == await record(backend, "a")
    assert (letter.fingerprint, letter.event, letter.original) == (BOOM.fingerprint, None, None)
    assert [error["attempt"] for error in letter.record.errors] == [1, 2]


async def test_the_latest_death_comes_first(backend: Backend) -> None:
    await subscribe(backend)
    jobs = {}
    for name in ("a", "b", "c"):
        [jobs[name]] = await die(backend, name)
        await backend.advance(MINUTE)
    assert await names(backend) == ["c", "b", "a"]
    assert await names(backend, DeadFilter(CHANNEL, CONSUMER)) == ["c", "b", "a"]
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [jobs["a"].id]) == [True]
    assert await names(backend) == ["c", "b"]
    await bury_all(backend, await claim(backend))
    assert await names(backend) == ["a", "c", "b"], "by its last death"


@pytest.mark.parametrize("page", [1, 2, 3, 7, 100])
async def test_pages_show_each_once_even_where_many_died_together(backend: Backend, page: int) -> None:
    await subscribe(backend)
    await subscribe(backend, MAIL)
    await die(backend, *(f"e-{n}" for n in range(7)))
    await bury_all(backend, await claim(backend, consumer=MAIL))
    everything = [(each.record.consumer, each.record.event_id) for each in await listed(backend, page=page)]
    assert len(everything) == len(set(everything)) == 14
    mine = await names(backend, DeadFilter(CHANNEL, CONSUMER), page)
    assert sorted(mine) == sorted(f"e-{n}" for n in range(7))
    assert mine == [name for consumer, name in everything if consumer == CONSUMER], "in one order everywhere"


async def test_a_page_goes_on_after_what_was_shown_whatever_happened_since(backend: Backend) -> None:
    await subscribe(backend)
    jobs = {}
    for name in ("a", "b", "c", "d"):
        [jobs[name]] = await die(backend, name)
        await backend.advance(MINUTE)
    first = await backend.deadletters.page(DeadFilter(CHANNEL, CONSUMER), None, 2)
    assert [each.record.event_id for each in first.letters] == ["d", "c"]
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [jobs["c"].id, jobs["b"].id]) == [True, True]
    await die(backend, "e")
    second = await backend.deadletters.page(DeadFilter(CHANNEL, CONSUMER), first.after, 2)
    assert [each.record.event_id for each in second.letters] == ["a"]


@pytest.mark.parametrize("after", ["nonsense", "", "\x00", "9" * 400])
@pytest.mark.parametrize("wanted", [EVERYTHING, DeadFilter(CHANNEL, CONSUMER), DeadFilter(text="x")])
async def test_a_place_that_no_page_gave_is_refused(backend: Backend, wanted: DeadFilter, after: str) -> None:
    await subscribe(backend)
    await die(backend, "a")
    with pytest.raises(holdfast.InvalidInput):
        await backend.deadletters.page(wanted, after, 10)


@pytest.fixture
async def _many(backend: Backend) -> None:
    """Dead letters that differ in everything that a filter asks for."""
    for channel in (CHANNEL, "stock"):
        for consumer in (CONSUMER, MAIL):
            await subscribe(backend, consumer, channel=channel)
        errors: list[Exception | str] = [
            KeyError("Order 1 is GONE"),
            KeyError("order 2 is gone"),
            ValueError("STRASSE 3"),
            "plain",
        ]
        await publish(backend, *(f"{channel}-{n}" for n in range(8)), channel=channel)
        for consumer in (CONSUMER, MAIL):
            jobs = await claim(backend, 8, consumer=consumer, channel=channel)
            for number, job in enumerate(jobs):
                reason = (Reason.TERMINAL, Reason.MAX_ATTEMPTS, Reason.CRASH_LOOP)[number % 3]
                await bury_all(backend, [job], errors[number % 4], reason)
                await backend.advance(timedelta(seconds=10))


@pytest.mark.usefixtures("_many")
async def test_the_list_agrees_with_the_rule_of_the_filter(backend: Backend) -> None:
    everything = await listed(backend)
    assert len(everything) == 32
    times = sorted(each.record.ended_at for each in everything if each.record.ended_at)
    gone = describe(KeyError("order 7 is gone")).fingerprint
    where = [DeadFilter(), DeadFilter(CHANNEL), DeadFilter(consumer=MAIL), DeadFilter("stock", CONSUMER)]
    what: list[dict[str, Any]] = [
        {"reason": "terminal"},
        {"kind": "KeyError"},
        {"kind": ""},
        {"fingerprint": gone},
        {"since": times[10]},
        {"until": times[20]},
        {"text": "is gone"},
        {"text": "straße"},
        {"text": "100%_\\"},
        {"reason": "max_attempts", "fingerprint": gone},
        {"since": times[5], "until": times[25], "kind": "KeyError", "text": "ORDER"},
        {"reason": "no such"},
    ]
    for wanted in [replace(place, **more) for place in where for more in [{}, *what]]:
        expected = [each for each in everything if wanted.holds(each)]
        assert await listed(backend, wanted) == expected, wanted
        assert await listed(backend, wanted, page=3) == expected, wanted


@pytest.mark.usefixtures("_many")
async def test_nobodys_dead_letters_are_none(backend: Backend) -> None:
    for wanted in (DeadFilter("nowhere"), DeadFilter(consumer="nobody"), DeadFilter(CHANNEL, "nobody")):
        assert await listed(backend, wanted) == []


async def test_a_long_search_ends_and_finds(backend: Backend) -> None:
    """The effort for a page is bounded: where it took long, it may be short and says where to go on."""
    await subscribe(backend)
    await die(backend, "needle", error="the needle")
    for start in (0, 700, 1400):
        await die(backend, *(f"e-{n}" for n in range(start, start + 700)))
    wanted = DeadFilter(CHANNEL, CONSUMER, text="needle")
    assert await names(backend, wanted) == ["needle"]
    assert await names(backend, DeadFilter(text="no such")) == []
    first = await backend.deadletters.page(EVERYTHING, None, 100)
    assert len(first.letters) == 100


async def test_one_dead_letter_comes_with_its_event(backend: Backend) -> None:
    await subscribe(backend)
    event = Event(b"\x00raw\xff", "a", source="shop", type="order", key="k", headers={"trace": "ü"})
    await backend.log.publish(CHANNEL, [event])
    job = await claim_one(backend)
    assert await bury(backend, job)
    letter = await backend.deadletters.letter(CHANNEL, CONSUMER, job.id)
    assert letter is not None
    assert letter.event == job.event
    assert letter.original is None
    assert (letter.record, letter.fingerprint) == (
        await record(backend, "a", source="shop"),
        BOOM.fingerprint,
    )


async def test_what_is_not_dead_is_no_dead_letter(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, MAIL)
    await publish(backend, "dead", "leased", "done", "ready")
    dead, leased, done = await claim(backend, 3)
    assert await bury(backend, dead)
    assert await complete(backend, done)
    ready = await record(backend, "ready")
    for job_id in (leased.id, done.id, ready.id, *NO_IDS):
        assert await backend.deadletters.letter(CHANNEL, CONSUMER, job_id) is None, job_id
    assert await backend.deadletters.letter(CHANNEL, MAIL, dead.id) is None, "another consumer's"
    assert await backend.deadletters.letter(CHANNEL, "nobody", dead.id) is None
    assert await backend.deadletters.letter("nowhere", CONSUMER, dead.id) is None
    assert await backend.deadletters.letter(CHANNEL, CONSUMER, dead.id) is not None
