"""What one job's history costs to find: few rows can have it, however many there are nearby."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from explain import explain, pooled

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from kit import CHANNEL, MINUTE, claim, publish, record, subscribe

Sql = psycopg.Connection[tuple[Any, ...]]

# As if bulk publishes after those that are there had been done, ten events at a time.
DONE = """
    INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
                                  outcome, priority, attempts, abandonments, members)
    SELECT c.id, c.channel_id, 1, f, f + 9, 1, now(), now(), 'done', 0, 1, 0,
           ARRAY(SELECT generate_series(f, f + 9))
    FROM holdfast.consumers c, generate_series(131072 * 9 + 1, 131072 * 9 + %s, 10) f
"""
GONE = """
    INSERT INTO holdfast.trimmed (channel_id, epoch, seq, id, source, type, trimmed_at)
    SELECT channel_id, epoch, seq, id, source, type, now() - interval '1 year' FROM holdfast.log
"""


async def test_forgetting_what_was_trimmed_looks_at_few_rows_of_history(
    backend: PostgresBackend, sql: Sql
) -> None:
    """Events whose history is gone, each followed by many rows of history of later ones."""
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"{}", f"e-{number}") for number in range(200)])
    sql.execute(GONE)
    costs = []
    held = await backend.locks.acquire("sweeper", "me", MINUTE)
    assert held is not None
    for done in (1000, 1_000_000):
        sql.execute("TRUNCATE holdfast.history")
        sql.execute(DONE, [done])
        before = await backend.now() - MINUTE
        async with pooled(backend.url) as connection:
            plan = await explain(
                connection,
                "forget",
                run=True,
                keys=before,
                jobs=before,
                limit=100,
                lock=held.name,
                token=held.token,
            )
        costs.append(plan.buffers)
    # An index of as many entries more is somewhat deeper.
    assert costs[1] < 3 * costs[0]


@pytest.mark.parametrize("apart", [1, 7, 8, 63, 64, 4000, 8000])
async def test_a_job_is_found_in_rows_of_any_width(backend: PostgresBackend, sql: Sql, apart: int) -> None:
    """Two events in one row, with so many publishes between them as nearly fill a block, or just one."""
    await subscribe(backend)
    await publish(backend, "first")
    sql.execute("SELECT setval('holdfast.event_seq', %s)", [1 + 131072 * (apart - 1)])
    await publish(backend, "last")
    await backend.log.publish(CHANNEL, [Event(b"{}", f"e-{number}") for number in range(9)])
    jobs = await claim(backend, 2) + await claim(backend, 1) + await claim(backend, 8)
    assert all(await backend.leases.complete(jobs))
    for job in jobs:
        assert (await record(backend, job.event.id)).state.value == "done"
    assert [row[0] for row in sql.execute("SELECT n FROM holdfast.history ORDER BY token")] == [2, 1, 8]
