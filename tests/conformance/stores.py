"""The stores under the one suite. A new backend is a new entry in `STORES`; no test has to change."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod

import nats
import psycopg
import pytest
import redis.asyncio

from pooler import PgBouncer


class Store(ABC):
    """An empty store, and the little that the suite needs of it beyond the contract."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.url = self.create(request)

    @abstractmethod
    def create(self, request: pytest.FixtureRequest) -> str:
        """Make the empty store and answer its URL. Its fixtures are asked for here, by name."""

    @abstractmethod
    async def become_restored(self) -> None:
        """Make the store look, at the next open, as if it had been restored or replaced."""

    @abstractmethod
    async def append(self, channel: str, data: str) -> None:
        """Add an event as a client does that knows only the server."""

    @abstractmethod
    async def form_group(self, channel: str, name: str) -> None:
        """Let other software have a consumer group on a channel, where the store knows such."""


class PostgresStore(Store):
    """One database of the session's server."""

    def create(self, request: pytest.FixtureRequest) -> str:
        url: str = request.getfixturevalue("database")
        return url

    async def become_restored(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            await connection.execute("UPDATE holdfast.store SET system_id = system_id + 1")

    async def append(self, channel: str, data: str) -> None:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            await connection.execute("SELECT holdfast.publish(%s, %s)", (channel, data))

    async def form_group(self, channel: str, name: str) -> None:
        """There are none."""


class BulkStore(PostgresStore):
    """The same, but every publish is a bulk publish."""

    def create(self, request: pytest.FixtureRequest) -> str:
        request.getfixturevalue("monkeypatch").setattr("holdfast.backends.postgres.log._BULK", 1)
        return super().create(request)


class PooledStore(PostgresStore):
    """The same, through PgBouncer in transaction mode."""

    def create(self, request: pytest.FixtureRequest) -> str:
        direct = super().create(request)
        pooler: PgBouncer = request.getfixturevalue("pooler")
        return pooler.database_url(direct.rpartition("/")[2])


class RedisStore(Store):
    """The session's Redis server, emptied."""

    def create(self, request: pytest.FixtureRequest) -> str:
        url: str = request.getfixturevalue("empty_redis")
        return url

    async def become_restored(self) -> None:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.hset("{holdfast}:store", "run_id", "another server")

    async def append(self, channel: str, data: str) -> None:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.xadd(channel.replace(".", ":"), {"data": data})

    async def form_group(self, channel: str, name: str) -> None:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.xgroup_create(channel.replace(".", ":"), name, id="0")


class NatsStore(Store):
    """The session's NATS server, without our stream."""

    def create(self, request: pytest.FixtureRequest) -> str:
        url: str = request.getfixturevalue("empty_nats")
        return url

    async def become_restored(self) -> None:
        async with await nats.connect(self.url) as client:
            stream = client.jetstream()
            found = await stream.get_last_msg("HOLDFAST", "HF.S.registry")
            registry = json.loads(found.data or b"") | {"identity": "another server"}
            await stream.publish("HF.S.registry", json.dumps(registry).encode())

    async def append(self, channel: str, data: str) -> None:
        async with await nats.connect(self.url) as client:
            await client.jetstream().publish(channel, data.encode())

    async def form_group(self, channel: str, name: str) -> None:
        async with await nats.connect(self.url) as client:
            await client.jetstream().pull_subscribe(channel, durable=name)


STORES: dict[str, type[Store]] = {"postgres": PostgresStore, "redis": RedisStore, "nats": NatsStore}
VARIANTS: dict[str, type[Store]] = {"postgres-bulk": BulkStore, "postgres-pooler": PooledStore}
"""Stores in another form; only in `make test-all`."""
