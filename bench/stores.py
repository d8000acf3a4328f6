"""The servers that contestants run on: one server for all, an empty database for each measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import psycopg
from psycopg.sql import SQL, Identifier

from holdfast.embedded import Postgres

SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB"}


class Store(Protocol):
    def empty(self, name: str) -> AbstractContextManager[str]:
        """The URL of an empty database, which is gone after the block."""
        ...

    async def settle(self, url: str) -> None:
        """Write back and clean up what earlier work left behind."""
        ...

    def describe(self) -> dict[str, str]:
        """Version and durability, as the server itself states them."""
        ...


class PostgresStore:
    def __init__(self, server: Postgres) -> None:
        self.server = server

    @contextmanager
    def empty(self, name: str) -> Iterator[str]:
        try:
            yield self.server.create_database(name)
        finally:
            with psycopg.connect(self.server.url, autocommit=True) as connection:
                drop = SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                connection.execute(drop.format(Identifier(name)))

    async def settle(self, url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("VACUUM (ANALYZE)")
            await connection.execute("CHECKPOINT")

    def describe(self) -> dict[str, str]:
        names = ["server_version", *SETTINGS]
        query = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
        with psycopg.connect(self.server.url) as connection:
            return dict(connection.execute(query, (names,)).fetchall())


@contextmanager
def postgres() -> Iterator[Store]:
    with Postgres(settings=SETTINGS) as server:
        yield PostgresStore(server)


STORES: dict[str, Callable[[], AbstractContextManager[Store]]] = {"postgres": postgres}
