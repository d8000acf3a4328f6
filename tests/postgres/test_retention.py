"""What retention leaves to PostgreSQL itself: estimates, pages, and publishers that use SQL alone."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from explain import waiting

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.model.upkeep import Forgotten, Lock
from kit import CHANNEL, MINUTE, claim, complete, publish, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]

FILL = """
    INSERT INTO holdfast.log (channel_id, epoch, seq, id, source, type, data, published_at)
    SELECT c.id, 1, nextval('holdfast.event_seq'), 'e-' || n, 'default', 'event',
           convert_to(repeat('x', 200), 'UTF8'), now()
    FROM holdfast.channels c, generate_series(1, %s) n WHERE c.name = %s"""


@pytest.fixture
async def lock(backend: PostgresBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert held is not None
    return held


@pytest.mark.parametrize("analyzed", [False, True])
async def test_a_large_log_is_estimated_from_statistics(
    backend: PostgresBackend, sql: Sql, analyzed: bool
) -> None:
    sql.execute("ALTER TABLE holdfast.log SET (autovacuum_enabled = false)")
    for channel, count in ((CHANNEL, 130_000), ("refunds", 40_000)):
        await backend.channels.create(channel)
        sql.execute(FILL, [count, channel])
    if analyzed:
        sql.execute("ANALYZE holdfast.log")
    large, small = await backend.retention.size(CHANNEL), await backend.retention.size("refunds")
    assert 100_000 <= large.events <= 200_000
    assert small.events == 40_000
    assert 1 / 2 <= large.bytes / (130_000 * 200) <= 2
    assert 1 / 2 <= small.bytes / (40_000 * 200) <= 2


async def test_a_size_knows_both_ends_of_the_log(backend: PostgresBackend) -> None:
    for number, size in enumerate((2000, 10)):
        events = [holdfast.Event(b"x" * size, f"{number}-{n}") for n in range(1000)]
        await backend.log.publish(CHANNEL, events)
    assert 1 / 2 <= (await backend.retention.size(CHANNEL)).bytes / (1000 * 2010) <= 2


async def test_forget_goes_round_and_round(backend: PostgresBackend, sql: Sql, lock: Lock) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(250)))
    for job in await claim(backend, 250):
        assert await complete(backend, job)
    later = await backend.now() + MINUTE
    steps = [await backend.retention.forget(later, later, 100, lock) for _ in range(4)]
    assert [(step.keys, step.jobs, step.more) for step in steps] == [
        (100, 100, True),
        (100, 100, True),
        (50, 50, False),
        (0, 0, False),
    ]
    await publish(backend, "again")
    assert await backend.retention.forget(later, later, 100, lock) == Forgotten(1, 0, more=False), (
        "it began anew"
    )


async def test_the_key_of_a_scheduled_event_is_kept_until_it_is_due(
    backend: PostgresBackend, lock: Lock
) -> None:
    await subscribe(backend)
    due = await backend.now() + 60 * MINUTE
    [first] = await publish(backend, "a", at=due)
    soon = due - MINUTE
    assert (await backend.retention.forget(soon, soon, 100, lock)).keys == 0
    [again] = await publish(backend, "a", at=due)
    assert (again.position, again.duplicate) == (first.position, True)
    assert await backend.leases.cancel(CHANNEL, "default", "a", None) == 1
    later = due + MINUTE
    assert (await backend.retention.forget(later, later, 100, lock)).keys == 1


async def test_a_full_channel_refuses_whoever_publishes_with_sql(
    bus: Bus, backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    await publish(backend, "a")
    await backend.retention.set_full(CHANNEL, True)
    with pytest.raises(psycopg.Error, match="max_bytes") as caught:
        sql.execute("SELECT * FROM holdfast.publish('orders', '{}')")
    assert caught.value.sqlstate == "HF002"
    with pytest.raises(holdfast.Overloaded, match="raise max_bytes"):
        await bus.publish(CHANNEL, 1, id="b", connection=transaction)
    transaction.rollback()
    await backend.retention.set_full(CHANNEL, False)
    sql.execute("SELECT * FROM holdfast.publish('orders', '{}')")
    await bus.publish(CHANNEL, 1, id="b", connection=transaction)


async def test_a_bound_that_is_being_set_is_not_undone(
    backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    await subscribe(backend)
    await backend.retention.set_full(CHANNEL, True)
    transaction.execute("SELECT holdfast.set_max_depth(channel_id, id, 1) FROM holdfast.consumers")
    opening = asyncio.create_task(backend.retention.set_full(CHANNEL, False))
    await waiting(sql)
    transaction.commit()
    await opening
    await publish(backend, "a")
    with pytest.raises(holdfast.Overloaded, match="max_depth"):
        await publish(backend, "b")


async def test_an_unknown_channel_cannot_be_full(backend: PostgresBackend) -> None:
    with pytest.raises(holdfast.NotFound, match="nowhere"):
        await backend.retention.set_full("nowhere", True)
