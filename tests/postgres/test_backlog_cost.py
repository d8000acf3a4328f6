"""A look at every backlog, as each scrape takes one, costs what its limit allows, not what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from explain import Plan, explain, pooled

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from kit import MINUTE, subscribe

FEW, MANY, LIMIT = 5_000, 50_000, 500

# Of five consumers with rows: one has ready jobs, one scheduled ones, one waits for keys, one has
# ready ones of keys, and one has what it ended. Another channel has consumers with as many events
# before them: in the log, behind a mark, and scheduled.
FILL = """
    SET session_replication_role = replica;
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, due_at, created_at, state, held, order_key)
    SELECT c.id, c.channel_id, 1, n, now(), now(),
           (CASE c.name WHEN 'waits' THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state,
           c.name = 'keyed', CASE WHEN c.name IN ('keyed', 'heads') THEN 'k-' || n END
    FROM generate_series(1, {count}) n, holdfast.consumers c
    WHERE c.name IN ('ready', 'waits', 'keyed', 'heads');
    INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
                                  outcome, priority, attempts, abandonments, members)
    SELECT c.id, c.channel_id, 1, min(n), max(n), 1, now(), now(), 'done', 0, 1, 0,
           array_agg(n ORDER BY n)
    FROM generate_series(1, {count}) n, holdfast.consumers c WHERE c.name = 'ended'
    GROUP BY c.id, c.channel_id, n / 128;
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
        await subscribe(backend, "heads", ordered=True)
        for name in ("logged", "marked"):
            await subscribe(backend, name, channel="log")
        await subscribe(backend, "later", channel="later")
        later = await backend.now() + 60 * MINUTE
        for start in range(0, count, 5000):
            events = [Event(b"{}", f"e-{number}") for number in range(start, start + 5000)]
            await backend.log.publish("log", events)
            await backend.log.publish("later", events, at=later)
        await backend.leases.cancel("log", "default", "e-10", "marked")
        await backend.close()
        await asyncio.to_thread(_fill, urls[count], count)
    return urls


def _fill(url: str, count: int) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("jobs", "log", "history"):
            connection.execute(f"ALTER TABLE holdfast.{table} SET (autovacuum_enabled = false)")
        connection.execute(FILL.format(count=count))  # type: ignore[arg-type]
        connection.execute("VACUUM ANALYZE holdfast.jobs, holdfast.log, holdfast.history")


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
        assert plan.root["Actual Rows"] == 8
    assert plans[MANY].buffers <= 1.5 * plans[FEW].buffers
    # The positive control: this measure does see a read whose cost grows with what is stored.
    grown = {count: await asyncio.to_thread(_counting, url) for count, url in stores.items()}
    assert grown[MANY] > 5 * grown[FEW]
    full = {"ready", "waits", "keyed", "heads", "logged", "marked", "later"}
    assert await _counts(stores[MANY]) == dict.fromkeys(full, LIMIT) | {"ended": 0}


async def _counts(url: str) -> dict[str, int]:
    backend = PostgresBackend(url)
    await backend.open()
    found = {each.consumer: sum(each.live.values()) for each in await backend.channels.backlogs(LIMIT)}
    await backend.close()
    return found
