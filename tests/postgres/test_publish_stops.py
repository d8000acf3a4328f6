"""A publish that is stopped anywhere, and a reader that comes by: it finds each event once, and in order."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from explain import waiting

import holdfast
import stops
from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from kit import CHANNEL, publish, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]
SIZES = {"one": 1, "many": 3, "bulk": 210}


@pytest.fixture
async def stoppable(database: str, backend: PostgresBackend, sql: Sql) -> AsyncIterator[PostgresBackend]:
    """Another backend on the same database, whose one session stops where it is told to."""
    stops.install(sql)
    opened = PostgresBackend(database, connections=1)
    await opened.open()
    yield opened
    await opened.close()


class Reader:
    """Goes on from the last position that it has seen, by single entries and by pages in turn."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend, self.seen = backend, list[str]()
        self._position: str | None = None
        self._turn = itertools.cycle([True, False])

    async def read(self) -> None:
        if next(self._turn):
            entries = await self._backend.log.read(CHANNEL, self._position, 10_000)
            found = [(entry.position, entry.event.id) for entry in entries]
        else:
            found = []
            if last := (await self._backend.log.extent(CHANNEL)).last:
                async for page in self._backend.log.pages(CHANNEL, self._position, last, 100):
                    found += zip(page.positions, page.ids, strict=True)
        for position, event_id in found:
            assert self._position is None or position > self._position
            self._position = position
            self.seen.append(event_id)


def batch(name: str, count: int) -> list[Event]:
    return [Event(b"{}", f"{name}-{number}") for number in range(count)]


@pytest.mark.concurrency
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("size", SIZES)
async def test_a_publish_that_is_stopped_anywhere_never_appears_behind_a_reader(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, size: str, bounded: bool
) -> None:
    await subscribe(backend, max_depth=1_000_000 if bounded else None)
    reader, published = Reader(backend), list[str]()

    async def others(point: int) -> None:
        # They wait for the stopped one only where a consumer is bounded.
        await publish(backend, f"before-{point}", channel="refunds")
        if not bounded:
            await publish(backend, f"beside-{point}")
            await backend.log.publish(CHANNEL, batch(f"bulk-beside-{point}", 210))
        await reader.read()

    for point in itertools.count(1):
        mine = batch(f"stopped-{point}", SIZES[size])
        await stops.stop_at(stoppable, point)
        _, stopped = await stops.while_stopped(database, stoppable.log.publish(CHANNEL, mine), others(point))
        await stops.stop_at(stoppable, 0)
        await reader.read()
        published += [event.id for event in mine]
        if not bounded:
            published += [f"beside-{point}", *(event.id for event in batch(f"bulk-beside-{point}", 210))]
        if not stopped:
            break
    assert point > 3, "there are points at which it stopped"
    assert len(reader.seen) == len(published)
    assert sorted(reader.seen) == sorted(published)


@pytest.mark.concurrency
async def test_a_reader_that_is_stopped_anywhere_passes_nothing(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend
) -> None:
    """One that began before it was stopped commits meanwhile, after one that began later."""
    reader, published = Reader(stoppable), list[str]()
    await backend.channels.create(CHANNEL)
    for point in itertools.count(1):
        async with await psycopg.AsyncConnection.connect(database) as connection:
            await backend.log.publish(CHANNEL, batch(f"first-{point}", 1), connection=connection)

            async def others(point: int = point, connection: Any = connection) -> None:
                await publish(backend, f"second-{point}")
                await connection.commit()
                await backend.log.publish(CHANNEL, batch(f"third-{point}", 210))

            await stops.stop_at(stoppable, point)
            _, stopped = await stops.while_stopped(database, reader.read(), others())
        await stops.stop_at(stoppable, 0)
        await reader.read()
        third = [event.id for event in batch(f"third-{point}", 210)]
        published += [f"first-{point}-0", f"second-{point}", *third]
        assert reader.seen == published
        if not stopped:
            break
    assert point > 1, "there is a point at which it stopped"


async def test_an_id_that_an_open_transaction_holds_stops_no_other(
    database: str, backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    """Single publishes of one process share appends: two at a time, so that one may hang."""
    await subscribe(backend)  # a channel that is made in an open transaction does hold up all
    transaction.execute("SELECT holdfast.publish(%s, '{}', id => 'held')", [CHANNEL])
    async with holdfast.connect(database) as bus:
        held = asyncio.create_task(bus.publish(CHANNEL, {}, id="held"))
        await waiting(sql)
        others = await asyncio.gather(*(bus.publish(CHANNEL, {}, id=f"e-{number}") for number in range(50)))
        assert not held.done()
        transaction.commit()
        assert (await held).duplicate
    assert not any(receipt.duplicate for receipt in others)
    assert len(await backend.log.read(CHANNEL, None, 100)) == 51
