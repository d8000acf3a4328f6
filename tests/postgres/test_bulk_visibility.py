"""Bulk readers, new cursors and trims: none passes an event that commits late, below what was there."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.model.errors import DataLost
from holdfast.model.event import Event
from holdfast.model.log import Part
from holdfast.model.upkeep import Lock
from kit import CHANNEL, MINUTE, publish, read_all

Sql = psycopg.Connection[tuple[Any, ...]]
SINK = "archiver"


@pytest.fixture
async def late(bus: Bus, backend: PostgresBackend, transaction: Sql) -> str:
    """ "before" is there, "late" is in flight, "early" was published after it and committed first; answers
    the position of the last."""
    await publish(backend, "before")
    await bus.publish(CHANNEL, 1, id="late", connection=transaction)
    [early] = await publish(backend, "early")
    return early.position


async def lock(backend: PostgresBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert held is not None
    return held


async def pages(backend: PostgresBackend, after: str | None, until: str) -> list[str]:
    return [name async for page in backend.log.pages(CHANNEL, after, until, 10) for name in page.ids]


async def test_a_write_that_publishes_elsewhere_stops_none_of_them(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    transaction.execute("SELECT pg_current_xact_id()")
    await bus.publish("refunds", 1, id="r", connection=transaction)
    first, last = await publish(backend, "a", "b")
    assert (await backend.log.extent(CHANNEL)).last == last.position
    assert await pages(backend, None, last.position) == ["a", "b"]
    [page] = await backend.log.read_parts([Part(CHANNEL, first.position, last.position)])
    assert page.ids == ["b"]
    assert [cut[:2] for cut in await backend.log.cuts(CHANNEL, None, 100, 10)] == [(last.position, 2)]
    assert (await backend.log.behind(CHANNEL, None, 100)).events == 2
    waiting = (await backend.log.waiting({CHANNEL: None, "refunds": None}, 100)).values()
    assert [(each.last, each.rows) for each in waiting] == [(last.position, 2), (None, 0)]
    later = await backend.now() + MINUTE
    assert await backend.log.seek(CHANNEL, later) == last.position
    assert (await backend.cursors.attach(CHANNEL, SINK, "latest")).position == last.position
    assert (await backend.retention.trim(CHANNEL, later, 100, None)).removed == 2
    assert (await backend.retention.trim(CHANNEL, later, 100, await lock(backend))).removed == 2


async def test_bulk_reading_ends_below_it(backend: PostgresBackend, transaction: Sql, late: str) -> None:
    [before] = [entry.position for entry in await read_all(backend)]
    extent = await backend.log.extent(CHANNEL)
    assert (extent.trimmed, extent.first, extent.last) == (None, before, before)
    assert [cut[:2] for cut in await backend.log.cuts(CHANNEL, None, 100, 10)] == [(before, 1)]
    assert [cut[:2] for cut in await backend.log.cuts(CHANNEL, None, 100, 10, late)] == [(before, 1)]
    assert await pages(backend, None, late) == ["before"]
    assert [page.ids for page in await backend.log.read_parts([Part(CHANNEL, None, late)])] == [["before"]]
    waiting = (await backend.log.waiting({CHANNEL: None}, 100))[CHANNEL]
    assert (waiting.last, waiting.rows) == (before, 1)
    assert (await backend.log.behind(CHANNEL, None, 100)).events == 1
    assert await backend.log.seek(CHANNEL, await backend.now() + MINUTE) == before
    transaction.commit()
    assert (await backend.log.extent(CHANNEL)).last == late
    assert [cut.rows for cut in await backend.log.cuts(CHANNEL, None, 100, 10)] == [3]
    assert await pages(backend, None, late) == ["before", "late", "early"]
    assert await backend.log.seek(CHANNEL, await backend.now() + MINUTE) == late


@pytest.mark.parametrize("start", ["latest", "time"])
async def test_a_new_cursor_starts_below_it(
    backend: PostgresBackend, transaction: Sql, late: str, start: str
) -> None:
    time = await backend.now() + MINUTE
    cursor = await backend.cursors.attach(CHANNEL, SINK, time if start == "time" else "latest")
    transaction.commit()
    assert await pages(backend, cursor.position, late) == ["late", "early"]


async def test_a_trim_ends_below_it(backend: PostgresBackend, transaction: Sql, late: str) -> None:
    held, before = await lock(backend), await backend.now() + MINUTE
    step = await backend.retention.trim(CHANNEL, before, 100, held)
    assert (step.removed, step.more, step.hold) == (1, False, None)
    trimmed = (await backend.log.extent(CHANNEL)).trimmed
    transaction.commit()
    assert await pages(backend, trimmed, late) == ["late", "early"]
    with pytest.raises(DataLost):
        await pages(backend, None, late)
    assert (await backend.retention.trim(CHANNEL, before, 100, held)).removed == 2
    assert (await backend.log.extent(CHANNEL)).trimmed == late


async def test_what_is_trimmed_while_it_is_read_is_noticed(backend: PostgresBackend) -> None:
    receipts = await publish(backend, *(f"e-{n}" for n in range(9)))
    reading = backend.log.pages(CHANNEL, None, receipts[-1].position, 3)
    assert (await anext(reading)).ids == ["e-0", "e-1", "e-2"]
    step = await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 5, await lock(backend))
    assert (step.removed, step.more) == (5, True)
    with pytest.raises(DataLost, match=receipts[4].position):
        await anext(reading)


async def test_a_reader_behind_whom_it_is_trimmed_goes_on(backend: PostgresBackend) -> None:
    receipts = await publish(backend, *(f"e-{n}" for n in range(6)))
    reading = backend.log.pages(CHANNEL, None, receipts[-1].position, 3)
    await anext(reading)
    await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 3, await lock(backend))
    assert (await anext(reading)).ids == ["e-3", "e-4", "e-5"]


async def test_seek_finds_its_place_among_many_lives(backend: PostgresBackend, sql: Sql) -> None:
    times, positions = [await backend.now()], [None]
    for turn in range(12):
        if turn % 4 == 3:
            sql.execute("UPDATE holdfast.store SET epoch = epoch + 1")
        await backend.advance(MINUTE)
        receipts = await publish(backend, *(f"{turn}-{n}" for n in range(turn % 3 + 1)))
        await publish(backend, f"elsewhere-{turn}", channel="refunds")
        times.append(await backend.now())
        positions.append(receipts[-1].position)
    assert [await backend.log.seek(CHANNEL, time) for time in times] == positions


async def test_what_waits_is_weighed_exactly(backend: PostgresBackend) -> None:
    await backend.log.publish(CHANNEL, [Event(0, "a"), Event("x" * 100_000, "b"), Event(0, "c")])
    assert (await backend.log.waiting({CHANNEL: None}, 100))[CHANNEL].bytes == 100_004
