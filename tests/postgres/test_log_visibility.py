"""The log's readers: a commit that comes late, below what was read, is never skipped."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend, horizon
from holdfast.backends.postgres.queries import QUERIES
from holdfast.bus.client import Bus
from holdfast.model.errors import Unavailable
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
    assert ours.seen == ["before"], "it waits below the publish that still runs"
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


@pytest.mark.parametrize("wrote", ["elsewhere", "to another channel"])
async def test_a_write_that_publishes_nothing_to_the_channel_holds_nobody_back(
    bus: Bus, backend: PostgresBackend, transaction: Sql, sql: Sql, wrote: str
) -> None:
    await subscribe(backend)
    sql.execute("CREATE TABLE elsewhere (n int)")
    transaction.execute("INSERT INTO elsewhere VALUES (1)")
    if wrote == "to another channel":
        await bus.publish("refunds", 1, id="r", connection=transaction)
    await publish(backend, "a")
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]
    assert ids(await claim(backend)) == ["a"]


async def test_claims_wait_for_no_publish(bus: Bus, backend: PostgresBackend, transaction: Sql) -> None:
    await subscribe(backend)
    await bus.publish(CHANNEL, 1, id="late", connection=transaction)
    await publish(backend, "a")
    assert await read_all(backend) == []
    assert ids(await claim(backend)) == ["a"]


async def test_a_transaction_that_began_early_has_the_place_of_its_publish(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    ours = OurReader(backend)
    transaction.execute("SELECT pg_current_xact_id()")
    await publish(backend, "a", "b")
    await ours.read()
    await bus.publish(CHANNEL, 1, id="c", connection=transaction)
    await publish(backend, "d")
    await ours.read()
    assert ours.seen == ["a", "b"]
    transaction.commit()
    await ours.read()
    assert ours.seen == ["a", "b", "c", "d"]


async def test_what_can_be_read_once_can_be_read_again(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    """A transaction that published elsewhere long ago comes to the channel: it holds back what follows."""
    await bus.publish("refunds", 1, id="r", connection=transaction)
    *_, last = await publish(backend, "a", "b")
    assert len(await read_all(backend)) == 2
    await bus.publish(CHANNEL, 1, id="c", connection=transaction)
    await publish(backend, "d")
    assert (await backend.log.extent(CHANNEL)).last == last.position
    assert [page.ids async for page in backend.log.pages(CHANNEL, None, last.position, 10)] == [["a", "b"]]
    [cut] = await backend.log.cuts(CHANNEL, None, 10, 10, last.position)
    assert (cut.position, cut.rows) == (last.position, 2)


async def test_whoever_published_in_a_savepoint_that_was_rolled_back_is_waited_for_again(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    transaction.execute("SAVEPOINT s")
    await bus.publish(CHANNEL, 1, id="undone", connection=transaction)
    await publish(backend, "a")
    assert await read_all(backend) == []
    transaction.execute("ROLLBACK TO s")
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]
    await bus.publish(CHANNEL, 1, id="b", connection=transaction)
    await publish(backend, "c")
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]
    transaction.commit()
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b", "c"]


async def test_a_transaction_that_publishes_often_takes_two_locks_a_channel(
    bus: Bus, transaction: Sql, sql: Sql
) -> None:
    for number in range(20):
        await bus.publish(CHANNEL, 1, id=f"e-{number}", connection=transaction)
        await bus.publish("refunds", 1, id=f"e-{number}", connection=transaction)
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
    assert sql.execute(locks, [transaction.info.backend_pid]).fetchall() == [(4,)]


@pytest.mark.parametrize("shared", ["", "_shared"])
async def test_locks_of_an_application_hold_nobody_back(
    bus: Bus, backend: PostgresBackend, transaction: Sql, shared: str
) -> None:
    await publish(backend, *(f"e-{number}" for number in range(3)))
    for number in range(5):
        transaction.execute(f"SELECT pg_advisory_xact_lock{shared}({number})")
        transaction.execute(f"SELECT pg_advisory_xact_lock{shared}({number}, {number})")
    await bus.publish(CHANNEL, 1, id="late", connection=transaction)
    assert len(await read_all(backend)) == 3


async def test_whoever_keeps_publishers_out_holds_no_reader_back(
    backend: PostgresBackend, transaction: Sql
) -> None:
    await publish(backend, "a")
    lock = "SELECT pg_advisory_xact_lock(holdfast.publish_lock(), id) FROM holdfast.channels WHERE name = %s"
    transaction.execute(lock, [CHANNEL])
    publishing = asyncio.create_task(publish(backend, "b"))
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]
    transaction.rollback()
    await publishing
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b"]


async def test_a_publisher_that_has_only_begun_is_waited_for(
    backend: PostgresBackend, transaction: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the channel's lock and may know a number that others have passed, and has not told it yet."""
    await publish(backend, "a")
    lock = "SELECT pg_advisory_xact_lock_shared(holdfast.publish_lock(), id) FROM holdfast.channels"
    transaction.execute(lock)
    reading = asyncio.create_task(read_all(backend))
    await asyncio.sleep(0.1)
    assert not reading.done()
    transaction.rollback()
    assert [entry.event.id for entry in await reading] == ["a"]
    transaction.execute(lock)
    monkeypatch.setattr(horizon, "_PAUSES", (0.0, 0.001))
    with pytest.raises(Unavailable, match=str(transaction.info.backend_pid)):
        await read_all(backend)


async def test_who_holds_readers_back_is_named(
    bus: Bus, backend: PostgresBackend, transaction: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(QUERIES, "blockers", QUERIES["blockers"].replace("1 minute", "0 minutes"))
    transaction.execute("SELECT pg_current_xact_id()")
    assert "open publish" not in {finding.subject for finding in await backend.check()}
    await bus.publish(CHANNEL, 1, id="a", connection=transaction)
    await bus.publish("refunds", 1, id="a", connection=transaction)
    [found] = [finding for finding in await backend.check() if finding.subject == "open publish"]
    assert f"process {transaction.info.backend_pid} " in found.message
    assert f"{CHANNEL}, refunds" in found.message


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


@pytest.mark.concurrency
async def test_what_was_read_is_read_again_whoever_publishes_meanwhile(
    bus: Bus, backend: PostgresBackend, database: str
) -> None:
    """Publishers that come from another channel, with numbers of theirs that are long passed."""
    stop = asyncio.Event()

    async def publisher(number: int) -> int:
        turn = 0
        async with await psycopg.AsyncConnection.connect(database) as connection:
            while not stop.is_set():
                turn += 1
                for channel in ("refunds", CHANNEL, CHANNEL):
                    await bus.publish(channel, turn, connection=connection)
                await connection.commit()
        return turn

    publishers = [asyncio.create_task(publisher(number)) for number in range(6)]
    position, seen = None, list[str]()
    try:
        while len(seen) < 300:
            for entry in await backend.log.read(CHANNEL, position, 1000):
                position = entry.position
                seen.append(entry.event.id)
            if position is not None:
                pages = backend.log.pages(CHANNEL, None, position, 1000)
                assert [name async for page in pages for name in page.ids] == seen
                cuts = await backend.log.cuts(CHANNEL, None, 10_000, 10_000, position)
                assert [cut[:2] for cut in cuts] == [(position, len(seen))]
    finally:
        stop.set()
    published = 2 * sum(await asyncio.gather(*publishers))
    assert len(await read_all(backend)) == published
