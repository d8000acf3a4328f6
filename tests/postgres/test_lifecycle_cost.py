"""The lifecycle's read costs what is due, not what is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from explain import Plan, explain, pooled

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from kit import subscribe

FEW, MANY = 10_000, 1_000_000
ROUNDS = 60

# Out of a hundred that wait: 50 are ready, 20 are ready and will expire, 30 are scheduled. Straight into the
# table, since the log plays no part in this read, and with no trigger to slow it down.
FILL = """
    SET session_replication_role = replica;
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, due_at, created_at, expires_at, state)
    SELECT c.id, c.channel_id, 1, n, now() + '1 hour', now(),
           CASE WHEN n % 100 < 20 THEN now() + '1 day'::interval + n * '1 ms'::interval END,
           (CASE WHEN n % 100 < 70 THEN 'ready' ELSE 'scheduled' END)::holdfast.job_state
    FROM generate_series(1, {waiting}) n, holdfast.consumers c;
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, due_at, created_at, expires_at,
                               lease_until, state)
    SELECT c.id, c.channel_id, 1, 10000000 + n, now() - '1 hour'::interval, now() - '1 hour'::interval,
           CASE n % 3 WHEN 0 THEN now() - '1 second'::interval END,
           CASE n % 3 WHEN 1 THEN now() - '1 second'::interval END,
           (CASE n % 3 WHEN 0 THEN 'ready' WHEN 1 THEN 'leased' ELSE 'scheduled' END)::holdfast.job_state
    FROM generate_series(1, 100) n, holdfast.consumers c
"""

# The same question in the seed's way: one condition over all states, one index that begins with the state.
SEEDS_INDEX = """
    DROP INDEX holdfast.jobs_scheduled, holdfast.jobs_leased, holdfast.jobs_expiring;
    CREATE INDEX seed ON holdfast.jobs (state, due_at, id)
"""
SEEDS_QUERY = """
    EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT json)
    SELECT * FROM holdfast.jobs
    WHERE state = 'scheduled' AND due_at <= now() OR state = 'leased' AND lease_until <= now()
       OR state <> 'leased' AND expires_at <= now()
    ORDER BY due_at, id LIMIT 500
"""


@pytest.fixture
async def stores(new_database: Callable[[], str]) -> dict[int, str]:
    """Two databases with the same hundred jobs due, among few and among many that wait."""
    urls = {}
    for waiting in (FEW, MANY):
        urls[waiting] = new_database()
        backend = PostgresBackend(urls[waiting])
        await backend.open()
        await subscribe(backend)
        await backend.close()
        await asyncio.to_thread(fill, urls[waiting], waiting)
    return urls


def fill(url: str, waiting: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = false)")
        connection.execute(FILL.format(waiting=waiting))  # type: ignore[arg-type]
        connection.execute("VACUUM ANALYZE holdfast.jobs")


async def measured(url: str) -> Plan:
    async with pooled(url) as connection:
        await explain(connection, "due", run=True, limit=500)  # warm
        return await explain(connection, "due", run=True, limit=500)


async def best_times(urls: dict[int, str]) -> dict[int, float]:
    """The best of many rounds, each store in turn, so that noise hits both."""
    best = dict.fromkeys(urls, float("inf"))
    async with pooled(urls[FEW]) as few, pooled(urls[MANY]) as many:
        for turn in range(ROUNDS + 5):
            for waiting, connection in ((FEW, few), (MANY, many)):
                began = time.perf_counter()
                rows = await (await connection.execute(QUERIES["due"], {"limit": 500})).fetchall()
                took = time.perf_counter() - began
                assert len(rows) == 100
                if turn >= 5:
                    best[waiting] = min(best[waiting], took)
    return best


def seeds_cost(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(SEEDS_INDEX)
        row: Any = connection.execute(SEEDS_QUERY).fetchone()
        return Plan("seed", row[0][0]["Plan"]).buffers


async def test_a_read_of_a_hundred_due_jobs_costs_the_same_among_a_million(stores: dict[int, str]) -> None:
    # CORRECTIONS 001.8
    plans = {waiting: await measured(url) for waiting, url in stores.items()}
    for plan in plans.values():
        assert plan.root["Actual Rows"] == 100
        assert plan.scanned == set()
    assert plans[MANY].buffers <= 2 * plans[FEW].buffers
    times = await best_times(stores)
    assert times[MANY] <= 2 * times[FEW]
    # The positive control: this measure does see a read whose cost grows with what is stored.
    assert await asyncio.to_thread(seeds_cost, stores[MANY]) > 20 * plans[MANY].buffers
