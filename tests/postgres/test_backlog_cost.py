"""A look at every backlog, as each scrape takes one, costs what its limit allows, not what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from explain import Plan, explain, pooled

from holdfast.backends.postgres import PostgresBackend
from kit import subscribe

FEW, MANY, LIMIT = 5_000, 50_000, 500

# Of four consumers: one has ready jobs, one scheduled ones, one waits for keys, and one has what it ended.
FILL = """
    SET session_replication_role = replica;
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, seq, due_at, created_at, state, held,
                               order_key)
    SELECT c.id, c.channel_id, 1, n, now(), now(),
           (CASE c.name WHEN 'waits' THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state,
           c.name = 'keyed', CASE WHEN c.name = 'keyed' THEN 'k' END
    FROM generate_series(1, {count}) n, holdfast.consumers c WHERE c.name <> 'ended';
    INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, seq, token, created_at, ended_at,
                                  outcome, priority, attempts, abandonments)
    SELECT c.id, c.channel_id, 1, n, 1, now(), now(), 'done', 0, 1, 0
    FROM generate_series(1, {count}) n, holdfast.consumers c WHERE c.name = 'ended';
"""
COUNTING = """
    EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT json)
    SELECT consumer_id, state, count(*) FROM holdfast.jobs GROUP BY consumer_id, state
"""


@pytest.fixture
async def stores(new_database: Callable[[], str]) -> dict[int, str]:
    """The same consumers with some jobs, and with ten times as many."""
    urls = {}
    for count in (FEW, MANY):
        urls[count] = new_database()
        backend = PostgresBackend(urls[count])
        await backend.open()
        for name in ("ready", "waits", "ended"):
            await subscribe(backend, name)
        await subscribe(backend, "keyed", ordered=True)
        await backend.close()
        await asyncio.to_thread(_fill, urls[count], count)
    return urls


def _fill(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE holdfast.jobs SET (autovacuum_enabled = false)")
        connection.execute(FILL.format(count=count))  # type: ignore[arg-type]
        connection.execute("VACUUM ANALYZE holdfast.jobs")


async def _measured(url: str) -> Plan:
    async with pooled(url) as connection:
        await explain(connection, "backlogs", run=True, limit=LIMIT)  # warm
        return await explain(connection, "backlogs", run=True, limit=LIMIT)


def _counting(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row: Any = connection.execute(COUNTING).fetchone()
        return Plan("count", row[0][0]["Plan"]).buffers


async def test_a_look_costs_the_same_among_ten_times_as_many_jobs(stores: dict[int, str]) -> None:
    plans = {count: await _measured(url) for count, url in stores.items()}
    for plan in plans.values():
        assert plan.root["Actual Rows"] == 4
    assert plans[MANY].buffers <= 1.5 * plans[FEW].buffers
    # The positive control: this measure does see a read whose cost grows with what is stored.
    grown = {count: await asyncio.to_thread(_counting, url) for count, url in stores.items()}
    assert grown[MANY] > 5 * grown[FEW]
    assert await _counts(stores[MANY]) == {"ready": LIMIT, "waits": LIMIT, "keyed": LIMIT, "ended": 0}


async def _counts(url: str) -> dict[str, int]:
    backend = PostgresBackend(url)
    await backend.open()
    found = {each.consumer: sum(each.live.values()) for each in await backend.channels.backlogs(LIMIT)}
    await backend.close()
    return found
