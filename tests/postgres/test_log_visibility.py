"""The log's readers: a commit that comes late, below what was read, is never skipped."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from kit import CHANNEL, claim, ids, publish, read_all, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]


@pytest.fixture(autouse=True)
async def _channel(backend: PostgresBackend) -> None:
    await backend.channels.create(CHANNEL)


class NaiveReader:
    """The reader that CORRECTIONS 001.9 warns of: it goes by `id > last`."""

    def __init__(self, sql: Sql) -> None:
        self._sql, self._last, self.seen = sql, 0, list[str]()

    def read(self) -> None:
        rows = self._sql.execute(
            "SELECT seq, id FROM holdfast.log WHERE seq > %s ORDER BY seq", [self._last]
        ).fetchall()
        for self._last, event_id in rows:
            self.seen.append(event_id)


class OurReader:
    """A cursor over the log."""

    def __init__(self, backend: PostgresBackend) -> None:
        self._backend, self.seen = backend, list[str]()
        self._position: str | None = None

    async def read(self) -> None:
        for entry in await self._backend.log.read(CHANNEL, self._position, 1000):
            assert self._position is None or entry.position > self._position
            self._position = entry.position
            self.seen.append(entry.event.id)


async def test_a_late_commit_with_a_low_id_is_not_skipped(
    bus: Bus, backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    # CORRECTIONS 001.9, I14
    naive, ours = NaiveReader(sql), OurReader(backend)
    await publish(backend, "before")
    await bus.publish(CHANNEL, 1, id="late", connection=transaction)  # the low id, not committed yet
    await publish(backend, "early")  # the higher id, committed first
    naive.read()
    await ours.read()
    assert naive.seen == ["before", "early"]
    assert ours.seen == ["before"], "it waits below the transaction that still runs"
    transaction.commit()
    naive.read()
    await ours.read()
    assert naive.seen == ["before", "early"], "the positive control: the naive reader has lost it for good"
    assert ours.seen == ["before", "late", "early"]


async def test_a_rolled_back_publish_holds_nobody_back_for_good(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    await bus.publish(CHANNEL, 1, id="never", connection=transaction)
    await publish(backend, "a")
    assert await read_all(backend) == []
    transaction.rollback()
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]


async def test_any_long_write_holds_readers_back_but_no_claim(
    backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    await subscribe(backend)
    sql.execute("CREATE TABLE elsewhere (n int)")
    transaction.execute("INSERT INTO elsewhere VALUES (1)")
    await publish(backend, "a")
    assert await read_all(backend) == []
    assert ids(await claim(backend)) == ["a"], "claims of unordered jobs never wait for it"
    transaction.commit()
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]


async def test_a_long_read_holds_nobody_back(backend: PostgresBackend, transaction: Sql) -> None:
    transaction.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    transaction.execute("SELECT count(*) FROM holdfast.log")
    await publish(backend, "a")
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]


async def test_commits_in_any_order_lose_nothing(
    bus: Bus, backend: PostgresBackend, database: str, sql: Sql
) -> None:
    # CORRECTIONS 001.9, I14: many writers that commit in an order of their own, while both readers follow.
    chance, naive, ours = random.Random(3), NaiveReader(sql), OurReader(backend)
    expected: list[str] = []
    connections = [await psycopg.AsyncConnection.connect(database) for _ in range(8)]
    try:
        for turn in range(25):
            writers = chance.sample(connections, 4)
            for place, connection in enumerate(writers):
                await bus.publish(CHANNEL, turn, id=f"{turn}-{place}", connection=connection)
            for place in chance.sample(range(4), 4):
                if chance.random() < 0.8:
                    await writers[place].commit()
                    expected.append(f"{turn}-{place}")
                else:
                    await writers[place].rollback()
                naive.read()
                await ours.read()
    finally:
        await asyncio.gather(*(connection.close() for connection in connections))
    await ours.read()
    naive.read()
    assert sorted(ours.seen) == sorted(expected)
    assert len(naive.seen) < len(expected), "the positive control: the same play makes the naive reader lose"


async def test_a_position_is_above_every_one_that_was_readable_before(
    bus: Bus, backend: PostgresBackend
) -> None:
    """Publishers race; whatever a reader has seen, what it has not seen is above."""
    stop = asyncio.Event()

    async def publisher(number: int) -> None:
        turn = 0
        while not stop.is_set():
            await publish(backend, f"{number}-{turn}")
            turn += 1

    publishers = [asyncio.create_task(publisher(number)) for number in range(5)]
    high, seen = "", 0
    while seen < 400:
        for entry in await bus.read(CHANNEL, after=high or None, limit=50):
            assert entry.position > high
            high, seen = entry.position, seen + 1
    stop.set()
    await asyncio.gather(*publishers)
    rest = await bus.read(CHANNEL, after=high, limit=10_000)
    assert len(await read_all(backend)) == seen + len(rest)
