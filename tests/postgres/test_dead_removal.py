"""The end of a consumer on PostgreSQL: nothing of it is left, whatever was under way."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.errors import Outdated
from holdfast.model.job import Retry
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, claim_one, publish, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]

TABLES = ("jobs", "dead_letters", "history", "dead_counts", "dead_clusters", "dead_deltas", "depths")
TABLES += ("keys_to_wake", "frontiers", "ahead")


def left(sql: Sql) -> dict[str, int]:
    """How many rows each table has of it, where there are any."""
    found = {}
    for table in (*TABLES, "removals", "consumers"):
        [(found[table],)] = sql.execute(f"SELECT count(*) FROM holdfast.{table}").fetchall()
    return {table: rows for table, rows in found.items() if rows}


async def test_nothing_is_left_of_a_removed_consumer(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend, ordered=True, max_depth=100)
    await publish(backend, "k1", "k2", "k3", "k4", key="k")
    assert await bury(backend, await claim_one(backend))
    assert await backend.leases.complete([await claim_one(backend)]) == [True]
    await publish(backend, "k5", "k6", key="k")
    assert await backend.leases.cancel(CHANNEL, "default", "k6", None) == 1
    sql.execute("SELECT holdfast.fold_deltas()")
    assert len(left(sql)) == 9
    while not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done:
        assert "consumers" not in left(sql)
    assert left(sql) == {}
    assert sql.execute("SELECT bounded FROM holdfast.channels").fetchone() == (False,)


async def test_a_removal_does_not_overlook_a_job_on_its_way(
    backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    transaction.execute("SELECT holdfast.revive(consumer_id, ARRAY[seq], NULL) FROM holdfast.dead_letters")
    first = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)
    assert (first.dead, first.done) == (0, False), "somebody is moving it"
    transaction.commit()
    second = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)
    assert (second.jobs, second.done) == (1, True)
    assert left(sql) == {}


@pytest.mark.parametrize("verb", ["claim", "requeue", "cancel"])
async def test_a_removal_waits_for_who_takes_up_events(
    backend: PostgresBackend, sql: Sql, transaction: Sql, verb: str
) -> None:
    await subscribe(backend)
    [receipt] = await publish(backend, "a")
    number = int(receipt.position[-16:], 16)
    calls = {
        "claim": ("SELECT FROM holdfast.claim(%s, %s, 10, 'slow')", [CHANNEL, CONSUMER]),
        "requeue": ("SELECT holdfast.requeue(%s, %s, %s)", [CHANNEL, CONSUMER, number]),
        "cancel": ("SELECT holdfast.cancel(%s, 'default', 'a', %s, false, NULL, NULL)", [CHANNEL, CONSUMER]),
    }
    transaction.execute(*calls[verb])  # type: ignore[call-overload]
    removing = asyncio.create_task(backend.channels.remove_consumer(CHANNEL, CONSUMER, 100))
    await waiting(sql)
    transaction.commit()
    removed = await removing
    assert (removed.jobs, removed.history, removed.done) == (
        (0, 1, True) if verb == "cancel" else (1, 0, True)
    )
    assert left(sql) == {}


@pytest.mark.parametrize("count", [1, 300])
async def test_a_removal_does_not_wait_for_a_publish_in_flight(
    backend: PostgresBackend, sql: Sql, transaction: Sql, count: int
) -> None:
    await subscribe(backend)
    await publish(backend, "there")
    transaction.execute(
        "SELECT holdfast.publish('orders', '{}', id => n::text) FROM generate_series(1, %s) n", [count]
    )
    async with asyncio.timeout(60):
        removed = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)
    assert (removed.jobs, removed.done) == (1, True)
    transaction.commit()
    assert left(sql) == {}
    await subscribe(backend)
    assert await claim(backend) == [], "it is another one, and begins after them"


async def test_a_subscribe_does_not_wait_and_says_why(backend: PostgresBackend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    for _ in range(2):
        await claim_one(backend)
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done
    with pytest.raises(Outdated, match="is being removed; wait until that is done"):
        await subscribe(backend)


@pytest.mark.parametrize("kind", ["lease", "schedule", "expiry"])
async def test_what_is_being_removed_is_in_nobodys_way(backend: PostgresBackend, kind: str) -> None:
    """A removal may stand half done for long; what is due for others is found all the same."""
    for consumer in (CONSUMER, "mail"):
        await subscribe(backend, consumer, expires_after="5m" if kind == "expiry" else None)
    await publish(backend, *"abcde")
    for consumer in (CONSUMER, "mail"):
        jobs = [await claim_one(backend, consumer=consumer) for _ in range(5)]
        if kind != "lease":
            delay = MINUTE if kind == "schedule" else None
            assert all(await backend.leases.retry([Retry(job, delay, None) for job in jobs]))
    await backend.advance(5 * MINUTE)
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done
    assert [due.kind.value for due in (await backend.lifecycle.due(2)).due] == [kind] * 2
    assert {job.consumer for job in await backend.leases.stuck(2)} == ({"mail"} if kind == "lease" else set())


async def test_a_requeue_that_waited_for_a_removal_finds_no_job(
    backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await backend.leases.retry([Retry(job, None)]) == [True]
    transaction.execute("SELECT holdfast.begin_removal(%s, %s)", [CHANNEL, CONSUMER])
    requeued = asyncio.create_task(backend.leases.requeue(CHANNEL, CONSUMER, job.id))
    await waiting(sql)
    transaction.commit()
    assert not await asyncio.wait_for(requeued, 10)
    assert (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)).done
    assert left(sql) == {}
