"""The bystander's view of a contestant's tables on PostgreSQL: counting them, and holding them back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg

from . import Counts

BLOCKED: LiteralString = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def sql(name: str) -> bytes:
    """One of our own statements, from its file."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_bytes()


@dataclass
class TableLock:
    """A gate made of a table lock: a claim blocks on it, and goes on when it is released."""

    lock: psycopg.AsyncConnection
    watch: psycopg.AsyncConnection

    async def waiting(self) -> int:
        row = await (await self.watch.execute(BLOCKED)).fetchone()
        assert row is not None
        return int(row[0])

    async def open(self) -> None:
        await self.lock.commit()


class Tables:
    """Looks at the tables over a connection of its own, whatever driver the contestant uses."""

    def __init__(self, url: str, *, queue: LiteralString, counts: LiteralString) -> None:
        self.url = url
        self.queue = queue
        self.query = counts
        self.watch: psycopg.AsyncConnection | None = None

    async def connection(self) -> psycopg.AsyncConnection:
        if self.watch is None:
            self.watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        return self.watch

    async def counts(self) -> Counts:
        row = await (await (await self.connection()).execute(self.query)).fetchone()
        assert row is not None
        return Counts(*row)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[TableLock]:
        watch = await self.connection()
        async with await psycopg.AsyncConnection.connect(self.url) as lock:
            await lock.execute(psycopg.sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(self.table()))
            yield TableLock(lock, watch)

    def table(self) -> psycopg.sql.Identifier:
        return psycopg.sql.Identifier(*self.queue.split("."))

    async def close(self) -> None:
        if self.watch is not None:
            await self.watch.close()
