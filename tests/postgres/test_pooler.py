"""Through PgBouncer in transaction mode: everything works, nothing of a session is left to others."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import psycopg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.embedded import Postgres
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from holdfast.model.position import parse_position
from kit import CHANNEL, CONSUMER, until
from pooler import PgBouncer, need_pgbouncer

pytestmark = pytest.mark.usefixtures("_program")


@pytest.fixture
def _program() -> None:
    need_pgbouncer()


@pytest.fixture
def pooler(_program: None, database: str) -> Iterator[PgBouncer]:
    with PgBouncer(database, size=2) as started:
        yield started


@pytest.fixture
async def pooled(pooler: PgBouncer) -> AsyncIterator[PostgresBackend]:
    backend = PostgresBackend(pooler.url, connections=8)
    await backend.open()
    yield backend
    await backend.close()


async def test_many_tasks_share_two_connections_and_every_job_is_done_once(pooled: PostgresBackend) -> None:
    await pooled.channels.subscribe(CHANNEL, CONSUMER, Policy())
    seen: Counter[str] = Counter()

    async def publish(source: int) -> None:
        for number in range(10):
            await pooled.log.publish(CHANNEL, [Event(b"1", f"{source}-{number}")])
        await pooled.log.publish(CHANNEL, [Event(b"1", f"{source}-bulk-{number}") for number in range(250)])

    async def consume() -> None:
        while sum(seen.values()) < 6 * 260:
            jobs = await pooled.leases.claim(CHANNEL, CONSUMER, 100, "w")
            assert all(await pooled.leases.complete(jobs))
            seen.update(job.event.id for job in jobs)

    await asyncio.wait_for(asyncio.gather(*map(publish, range(6)), *(consume() for _ in range(6))), 60)
    assert set(seen.values()) == {1}
    stats = await pooled.channels.consumer_stats(CHANNEL, CONSUMER)
    assert stats.states == {"done": 6 * 260}


async def test_settings_of_ours_end_with_the_transaction(pooler: PgBouncer, pooled: PostgresBackend) -> None:
    await pooled.channels.subscribe(CHANNEL, CONSUMER, Policy())
    await asyncio.gather(*(pooled.log.publish(CHANNEL, [Event(b"1", str(n))]) for n in range(20)))
    with psycopg.connect(pooler.url, autocommit=True, prepare_threshold=None) as somebody:
        for _ in range(10):
            [setting] = somebody.execute("SHOW enable_seqscan").fetchall()
            assert setting == ("on",)


async def test_a_refused_call_leaves_a_connection_that_works(pooled: PostgresBackend) -> None:
    await pooled.log.publish(CHANNEL, [Event(b"1", "a")])
    for _ in range(5):
        with pytest.raises(holdfast.IdConflict):
            await pooled.log.publish(CHANNEL, [Event(b"2", "a")])
    assert (await pooled.channels.stats(CHANNEL)).events == 1


async def test_workers_find_new_work_without_wake_ups(pooler: PgBouncer) -> None:
    app = holdfast.App()
    done: list[str] = []

    @app.handler(CHANNEL, CONSUMER)
    async def note(event: holdfast.Event) -> None:
        done.append(event.id)

    async def handled(number: int) -> bool:
        return len(done) == number

    stop = asyncio.Event()
    async with Bus([PostgresBackend(pooler.url)]) as bus:
        await bus.subscribe(CHANNEL, CONSUMER)
        running = asyncio.create_task(app.run(bus, stop=stop, idle="50ms"))
        for number in range(3):
            await bus.publish(CHANNEL, {"n": number}, id=str(number))
            await until(lambda wanted=number + 1: handled(wanted))  # type: ignore[misc]
        stop.set()
        await running


async def test_a_store_behind_it_that_is_another_one_begins_a_new_epoch_at_once(
    pooled: PostgresBackend, sql: psycopg.Connection[tuple[object, ...]]
) -> None:
    """No connection of ours is new when the pooler goes to another server."""
    await pooled.channels.subscribe(CHANNEL, CONSUMER, Policy())
    [before] = await pooled.log.publish(CHANNEL, [Event(b"1", "a")])
    [first] = await pooled.leases.claim(CHANNEL, CONSUMER, 1, "w")
    sql.execute("UPDATE holdfast.store SET system_id = system_id + 1")
    [after] = await pooled.log.publish(CHANNEL, [Event(b"1", "b")])
    assert parse_position(after.position, 1)[0] > parse_position(before.position, 1)[0]
    [second] = await pooled.leases.claim(CHANNEL, CONSUMER, 1, "w")
    assert second.token > first.token + (1 << 31)


async def test_it_is_restarted_and_nothing_is_lost(pooler: PgBouncer, pooled: PostgresBackend) -> None:
    await pooled.channels.subscribe(CHANNEL, CONSUMER, Policy())
    await pooled.log.publish(CHANNEL, [Event(b"1", "before")])
    pooler.kill()
    with pytest.raises(Unavailable):
        await pooled.log.publish(CHANNEL, [Event(b"1", "meanwhile")])
    pooler.start()
    await pooled.log.publish(CHANNEL, [Event(b"1", "meanwhile")])
    jobs = await pooled.leases.claim(CHANNEL, CONSUMER, 10, "w")
    assert [job.event.id for job in jobs] == ["before", "meanwhile"]
    assert all(await pooled.leases.extend(jobs, timedelta(minutes=1)))


async def test_check_says_that_there_is_one(pooled: PostgresBackend, backend: PostgresBackend) -> None:
    assert "pooler" in [finding.subject for finding in await pooled.check()]
    assert "pooler" not in [finding.subject for finding in await backend.check()]


async def test_a_database_without_our_tables_is_migrated_through_it(postgres: Postgres, blank: str) -> None:
    with PgBouncer(blank) as pooler:
        async with holdfast.connect(pooler.url) as hf:
            await hf.subscribe(CHANNEL, CONSUMER)
            await hf.publish(CHANNEL, {"n": 1})
            assert len(await hf.poll(CHANNEL, CONSUMER, limit=10)) == 1
