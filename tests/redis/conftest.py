"""A real Redis for what is special to it: one server for the folder, emptied for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from holdfast.backends.redis import RedisBackend
from holdfast.embedded import Redis


@pytest.fixture(scope="session")
def relaxed_redis() -> Iterator[Redis]:
    """A server that never waits for a disk; tests that kill one start their own."""
    with Redis(appendfsync="no") as server:
        yield server


@pytest.fixture
def client(relaxed_redis: Redis) -> Iterator[redis.Redis]:
    """A foreign client: plain redis-py on an empty server."""
    with redis.Redis.from_url(relaxed_redis.url, decode_responses=True) as plain:
        plain.flushall()
        yield plain
        plain.config_set("maxmemory", 0)


@pytest.fixture
async def backend(relaxed_redis: Redis, client: redis.Redis) -> AsyncIterator[RedisBackend]:
    """An opened backend on the empty server."""
    opened = RedisBackend(relaxed_redis.url)
    await opened.open()
    yield opened
    await opened.close()
