"""The end of a consumer on PostgreSQL: nothing of it is left, whatever was under way."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.errors import Outdated
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, claim_one, publish, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]

TABLES = ("jobs", "dead_letters", "job_log", "dead_counts", "dead_clusters", "dead_deltas", "depths")
TABLES += ("keys_to_wake",)


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
    sql.execute("SELECT holdfast.fold_deltas()")
    assert len(left(sql)) == 7
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
    transaction.execute("SELECT holdfast.requeue(consumer_id, seq) FROM holdfast.dead_letters")
    first = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)
    assert (first.dead, first.done) == (0, False), "somebody is moving it"
    transaction.commit()
    second = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)
    assert (second.jobs, second.done) == (1, True)
    assert left(sql) == {}


async def test_a_publish_in_flight_leaves_no_job_behind(
    backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    await subscribe(backend)
    transaction.execute("SELECT * FROM holdfast.publish('orders', '{}', id => 'in flight')")
    removing = asyncio.create_task(backend.channels.remove_consumer(CHANNEL, CONSUMER, 100))
    await waiting(sql)
    transaction.commit()
    done = await removing
    assert (done.jobs, done.done) == (1, True)
    assert left(sql) == {}


async def test_a_subscribe_does_not_wait_and_says_why(backend: PostgresBackend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done
    with pytest.raises(Outdated, match="is being removed; wait until that is done"):
        await subscribe(backend)


@pytest.mark.parametrize("kind", ["lease", "schedule", "expiry"])
async def test_what_is_being_removed_is_in_nobodys_way(backend: PostgresBackend, kind: str) -> None:
    """A removal may stand half done for long; what is due for others is found all the same."""
    for consumer in (CONSUMER, "mail"):
        await subscribe(backend, consumer, expires_after="5m" if kind == "expiry" else None)
    await publish(backend, *"abcde", at=await backend.now() + MINUTE if kind == "schedule" else None)
    if kind == "lease":
        for consumer in (CONSUMER, "mail"):
            await claim(backend, consumer=consumer)
    await backend.advance(5 * MINUTE)
    assert not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)).done
    assert [due.kind.value for due in (await backend.lifecycle.due(2)).due] == [kind] * 2
    assert {job.consumer for job in await backend.leases.stuck(2)} == ({"mail"} if kind == "lease" else set())
