"""Frontiers: the log is taken up in order, nothing is skipped and nothing twice, whoever works beside it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

import stops
from holdfast.backends.postgres import PostgresBackend
from holdfast.model.job import Retry
from holdfast.model.upkeep import Lock
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    complete,
    ids,
    publish,
    record,
    step,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
MARKS = "SELECT count(*) FROM holdfast.ahead"
EVENTS = [f"e-{number}" for number in range(8)]


@pytest.fixture
async def lock(backend: PostgresBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 600 * MINUTE)
    assert held is not None
    return held


@pytest.fixture
async def stoppable(database: str, backend: PostgresBackend, sql: Sql) -> AsyncIterator[PostgresBackend]:
    """Another backend on the same database, whose one session stops where it is told to."""
    stops.install(sql)
    opened = PostgresBackend(database, connections=1)
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.concurrency
@pytest.mark.parametrize("first", ["cancelled", "too early"])
async def test_a_trim_of_what_nobody_gets_moves_no_place_of_a_take_up(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, lock: Lock, first: str
) -> None:
    """What is skipped is in nobody's need: it may be trimmed between any two statements of the take-up."""
    for point in itertools.count(1):
        channel = f"orders-{point}"
        if first == "cancelled":
            await subscribe(backend, channel=channel)
            await publish(backend, "first", channel=channel)
            assert await backend.leases.cancel(channel, "default", "first", None) == 1
        else:
            await publish(backend, "first", channel=channel)
            await subscribe(backend, channel=channel, start=await backend.now())
        await publish(backend, *EVENTS, channel=channel)
        before = await backend.now() + MINUTE
        await stops.stop_at(stoppable, point)
        (jobs, _), stopped = await stops.while_stopped(
            database,
            claim(stoppable, 3, channel=channel),
            backend.retention.trim(channel, before, 100, lock),
        )
        await stops.stop_at(stoppable, 0)
        assert ids([*jobs, *await claim(backend, channel=channel)]) == EVENTS, point
        if not stopped:
            break
    assert point > 10, "there are points at which it stopped"


OTHERS = ["cancel", "requeue", "trim", "subscribe", "complete", "release", "claim", "lifecycle", "publish"]


@pytest.mark.concurrency
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("kind", ["plain", "marked", "expiring", "ordered"])
async def test_a_claim_that_is_stopped_anywhere_neither_skips_nor_repeats(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, lock: Lock, other: str, kind: str
) -> None:
    for point in itertools.count(1):
        channel = f"orders-{point}"
        expires_after = "10h" if kind == "expiring" else None
        await subscribe(backend, channel=channel, expires_after=expires_after, ordered=kind == "ordered")
        for each in EVENTS[:4]:
            await publish(backend, each, channel=channel)
        await publish(backend, *EVENTS[4:], channel=channel)
        held = await claim(backend, 2, channel=channel)
        number = (await record(backend, "e-4", channel=channel)).id
        cancelled = await backend.leases.cancel(channel, "default", "e-5", None) if kind == "marked" else 0
        calls = {
            "cancel": lambda: backend.leases.cancel(channel, "default", "e-4", None),  # noqa: B023
            "requeue": lambda: backend.leases.requeue(channel, CONSUMER, number),  # noqa: B023
            "trim": lambda: backend.retention.trim(channel, lock.until, 100, lock),  # noqa: B023
            "subscribe": lambda: subscribe(backend, "late", channel=channel, start="earliest"),  # noqa: B023
            "complete": lambda: backend.leases.complete(held[:1]),  # noqa: B023
            "release": lambda: backend.leases.retry([Retry(held[0], None, None)]),  # noqa: B023
            "claim": lambda: claim(backend, 3, channel=channel),  # noqa: B023
            "lifecycle": lambda: step(backend),
            "publish": lambda: publish(backend, "new", channel=channel),  # noqa: B023
        }
        await stops.stop_at(stoppable, point)
        (jobs, result), stopped = await stops.while_stopped(
            database, claim(stoppable, 3, channel=channel), calls[other]()
        )
        await stops.stop_at(stoppable, 0)
        got = ids([*held, *jobs, *await claim(backend, channel=channel)])
        wanted = [each for each in EVENTS if not (cancelled and each == "e-5")]
        match other:
            case "claim":
                got += ids(result)
            case "cancel" if result:
                wanted.remove("e-4")
            case "requeue" if got.count("e-4") == 2:  # it was leased before, and is again
                got.remove("e-4")
            case "release":
                wanted.append("e-0")
            case "publish":
                wanted.append("new")
            case "subscribe":
                assert sorted(ids(await claim(backend, consumer="late", channel=channel))) == EVENTS, point
        assert sorted(got) == sorted(wanted), point
        if not stopped:
            break
    assert point > 10, "there are points at which it stopped"


async def test_a_mark_goes_with_the_event_that_is_trimmed(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    """The take-up would never come to it, and look twice at each event for ever."""
    await subscribe(backend)
    await publish(backend, *EVENTS)
    assert await backend.leases.cancel(CHANNEL, "default", "e-0", None) == 1
    assert sql.execute(MARKS).fetchone() == (1,)
    trimmed = await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 100, lock)
    assert trimmed.removed == 1
    assert sql.execute(MARKS).fetchone() == (0,)
    assert ids(await claim(backend)) == EVENTS[1:]


async def test_an_event_that_a_dead_letter_kept_waits_for_who_came_later(
    backend: PostgresBackend, lock: Lock
) -> None:
    """It stands before the trimmed place, and has no row of the new consumer."""
    await subscribe(backend)
    await publish(backend, "dead", "done")
    for job in await claim(backend):
        assert await (bury if job.event.id == "dead" else complete)(backend, job)
    later = await backend.now() + MINUTE
    assert (await backend.retention.trim(CHANNEL, later, 100, lock)).removed == 1
    await subscribe(backend, "late", start="earliest")
    assert await backend.retention.purge_dead(CHANNEL, later, 10, lock) == {CONSUMER: 1}
    assert (await backend.retention.trim(CHANNEL, later, 100, lock)).removed == 0
    [job] = await claim(backend, consumer="late")
    assert job.event.id == "dead"
    assert await complete(backend, job)
    assert (await backend.retention.trim(CHANNEL, later, 100, lock)).removed == 1


async def test_what_expired_at_the_beginning_of_the_backlog_leaves_no_marks(
    backend: PostgresBackend, sql: Sql
) -> None:
    """Also where it was published after the window that the frontier has used up."""
    await subscribe(backend, expires_after="5m")
    await publish(backend, "taken")
    assert ids(await claim(backend)) == ["taken"]
    await publish(backend, *(f"late-{number}" for number in range(1200)))
    await backend.advance(6 * MINUTE)
    while (await step(backend)).total:
        assert sql.execute(MARKS).fetchone() == (0,)
    assert await claim(backend) == []
