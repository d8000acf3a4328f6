"""The servers that contestants run on: one server for all, an empty store for each measure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import Protocol

import nats
import psycopg
import redis.asyncio as redis
from psycopg.sql import SQL, Identifier

from holdfast.embedded import Nats, Postgres, Redis

PATIENCE = 120.0
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB"}


class Store(Protocol):
    def empty(self, name: str) -> AbstractAsyncContextManager[str]:
        """The URL of an empty store, whose content is gone after the block."""
        ...

    async def describe(self) -> dict[str, str]:
        """Version and durability, as the server itself states them where it does."""
        ...


class PostgresStore:
    def __init__(self, server: Postgres) -> None:
        self.server = server

    @asynccontextmanager
    async def empty(self, name: str) -> AsyncIterator[str]:
        try:
            yield self.server.create_database(name)
        finally:
            async with await psycopg.AsyncConnection.connect(self.server.url, autocommit=True) as connection:
                drop = SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
                await connection.execute(drop.format(Identifier(name)))

    async def describe(self) -> dict[str, str]:
        names = ["server_version", *SETTINGS]
        query = "SELECT name, current_setting(name) FROM unnest(%s::text[]) AS name"
        async with await psycopg.AsyncConnection.connect(self.server.url) as connection:
            return dict(await (await connection.execute(query, (names,))).fetchall())


async def settle(url: str) -> None:
    """Write back and clean up what earlier work left behind, so that no measure pays for it.

    Redis rewrites its append-only file. NATS writes every message when it comes, and has nothing to clean up.
    """
    if url.startswith("postgresql:"):
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute("VACUUM (ANALYZE)")
            await connection.execute("CHECKPOINT")
    elif url.startswith("redis:"):
        async with patient(url) as client:
            await rewritten(client)  # a server that has grown much begins by itself
            await client.bgrewriteaof()
            await rewritten(client)


def patient(url: str) -> redis.Redis:
    """A client that waits as long as a server may take that empties or rewrites a million entries."""
    return redis.Redis.from_url(url, socket_timeout=PATIENCE)


async def rewritten(client: redis.Redis) -> None:
    """Wait until no rewrite is under way."""
    while (await client.info("persistence"))["aof_rewrite_in_progress"]:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


class RedisStore:
    def __init__(self, server: Redis) -> None:
        self.server = server

    @asynccontextmanager
    async def empty(self, name: str) -> AsyncIterator[str]:
        try:
            yield self.server.url
        finally:
            async with patient(self.server.url) as client:
                await client.flushall()

    async def describe(self) -> dict[str, str]:
        async with patient(self.server.url) as client:
            version = (await client.info("server"))["redis_version"]
            synced = (await client.config_get("appendfsync"))["appendfsync"]
            return {"server_version": version, "appendfsync": str(synced)}


class NatsStore:
    def __init__(self, server: Nats) -> None:
        self.server = server

    @asynccontextmanager
    async def empty(self, name: str) -> AsyncIterator[str]:
        try:
            yield self.server.url
        finally:
            async with await nats.connect(self.server.url) as client:
                jetstream = client.jetstream()
                for stream in await jetstream.streams_info():
                    await jetstream.delete_stream(stream.config.name or "")

    async def describe(self) -> dict[str, str]:
        """The server tells only its administrators how it syncs; `always` is what we configured."""
        async with await nats.connect(self.server.url) as client:
            version = client.connected_server_version
            number = f"{version.major}.{version.minor}.{version.patch}"
            return {"server_version": number, "sync_interval": "always"}


@contextmanager
def postgres() -> Iterator[Store]:
    with Postgres(settings=SETTINGS) as server:
        yield PostgresStore(server)


@contextmanager
def redis_() -> Iterator[Store]:
    with Redis(appendfsync="always") as server:
        yield RedisStore(server)


@contextmanager
def nats_() -> Iterator[Store]:
    with Nats(sync_interval="always") as server:
        yield NatsStore(server)


STORES: dict[str, Callable[[], AbstractContextManager[Store]]] = {
    "postgres": postgres,
    "redis": redis_,
    "nats": nats_,
}
