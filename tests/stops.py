"""Stops: hold one session inside the store at a chosen point, let others commit, and let it go on.

A session that is told to stop at its n-th point waits there for the gate, an advisory lock that the test
holds. The points are where interleavings begin to matter:

- after the snapshot of a statement: every call of `holdfast.now()`, which statements make before they look
  at rows,
- between two statements of each PL/pgSQL function,
- after the work of a statement and before its commit (a trigger on every table).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from holdfast.backends.postgres import PostgresBackend

T, U = TypeVar("T"), TypeVar("U")
Sql = psycopg.Connection[tuple[Any, ...]]

_RETRIES = 1.0
GATE = 7421
"""As in stops.sql."""
_TABLES = (
    "SELECT c.oid::regclass FROM pg_class c WHERE relnamespace = 'holdfast'::regnamespace AND relkind = 'r'"
)
_FUNCTIONS = """
SELECT p.proname, pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
WHERE p.pronamespace = 'holdfast'::regnamespace AND l.lanname = 'plpgsql' AND p.provolatile = 'v'
"""
"""A stable one looks with the snapshot of the statement that calls it: there it stops."""
_ENDS = re.compile(r"^(?!\s*--)(.*;)[ \t]*(--.*)?$", re.MULTILINE)


def install(sql: Sql) -> None:
    """Give a database its stopping points."""
    functions = sql.execute(_FUNCTIONS).fetchall()
    sql.execute(Path(__file__).with_suffix(".sql").read_text())
    for (table,) in sql.execute(_TABLES).fetchall():
        sql.execute(
            f"CREATE TRIGGER zz_stop AFTER INSERT OR UPDATE OR DELETE ON {table}"
            " FOR EACH STATEMENT EXECUTE FUNCTION stops.after_statement()"
        )
    for name, definition in functions:
        sql.execute(_with_points(name, definition))


def _with_points(name: str, definition: str) -> str:
    head, begin, body = definition.partition("\nBEGIN\n")
    points = iter(range(1, body.count("\n") + 1))
    return head + begin + _ENDS.sub(lambda end: f"{end[1]} ASSERT stops.here('{name}:{next(points)}');", body)


async def stop_at(backend: PostgresBackend, point: int) -> None:
    """Let a backend of one connection stop at its n-th point from now on; 0 for nowhere."""
    async with backend._session.connection() as connection:
        await connection.execute("SELECT set_config('stops.left', %s, false)", [str(point)])


@asynccontextmanager
async def closed_gate(url: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
    """The gate of a database is closed inside, and open again after."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT pg_advisory_lock(%s)", [GATE])
        yield connection


async def while_stopped(url: str, stopped: Awaitable[T], other: Awaitable[U]) -> tuple[tuple[T, U], bool]:
    """Start one; when it waits at the gate, let the other run, and then open it. Also whether it waited."""
    async with closed_gate(url) as connection:
        first = asyncio.ensure_future(stopped)
        waited = await _either(connection, first, _AT_GATE)
        second = asyncio.ensure_future(other)
        # The other one is through, or waits for what the first one holds, or tries again until it is free.
        with suppress(TimeoutError):
            async with asyncio.timeout(_RETRIES):
                await _either(connection, second, _AT_LOCK)
    await asyncio.wait([first, second])
    return (first.result(), second.result()), waited


_AT_GATE = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
    WHERE a.datname = current_database() AND l.locktype = 'advisory' AND l.objid = %s AND NOT l.granted)
"""
_AT_LOCK = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
    WHERE a.datname = current_database() AND (l.locktype <> 'advisory' OR l.objid <> %s) AND NOT l.granted)
"""


async def _either(
    connection: psycopg.AsyncConnection[tuple[Any, ...]], task: asyncio.Future[Any], waiting: str
) -> bool:
    """Wait until the task has ended (False) or its session waits (True)."""
    while not task.done():
        [found] = await (await connection.execute(waiting, [GATE])).fetchone() or [False]
        if found:
            return True
        await asyncio.wait([task], timeout=0.002)
    return False
