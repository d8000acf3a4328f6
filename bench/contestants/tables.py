"""The bystander's view of a contestant's tables on PostgreSQL."""

from __future__ import annotations

from pathlib import Path
from typing import LiteralString

import psycopg

from . import Counts


def sql(name: str) -> bytes:
    """One of our own statements, from its file."""
    return (Path(__file__).parent / "sql" / f"{name}.sql").read_bytes()


class Tables:
    """Counts over a connection of its own, whatever driver the contestant uses."""

    def __init__(self, url: str, counts: LiteralString) -> None:
        self.url = url
        self.query = counts
        self.watch: psycopg.AsyncConnection | None = None

    async def counts(self) -> Counts:
        if self.watch is None:
            self.watch = await psycopg.AsyncConnection.connect(self.url, autocommit=True)
        row = await (await self.watch.execute(self.query)).fetchone()
        assert row is not None
        return Counts(*row)

    async def close(self) -> None:
        if self.watch is not None:
            await self.watch.close()
