"""Connections that end under load, one by one or all at once: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from promotion import load

from pooler import PgBouncer, need_pgbouncer

SOME = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'holdfast' ORDER BY random() LIMIT 2
"""


async def test_server_processes_that_are_ended_at_random(
    database: str, sql: psycopg.Connection[tuple[Any, ...]]
) -> None:
    async with load(database) as loaded:
        for _ in range(20):
            await loaded.more(15)
            sql.execute(SOME)
        await loaded.more(50)
        await loaded.drained()
    assert set(loaded.acknowledged) <= set(loaded.handled)
    assert set(loaded.completed.values()) == {1}


async def test_a_pooler_that_is_killed_and_started_under_load(database: str) -> None:
    need_pgbouncer()
    with PgBouncer(database) as pooler:
        async with load(pooler.url) as loaded:
            for _ in range(3):
                await loaded.more(50)
                await asyncio.to_thread(pooler.kill)
                await asyncio.to_thread(pooler.start)
            await loaded.more(50)
            await loaded.drained()
    assert set(loaded.acknowledged) <= set(loaded.handled)
    assert set(loaded.completed.values()) == {1}
