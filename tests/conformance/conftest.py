"""A backend on an empty store for each test, once for every kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import redis
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.embedded import Redis
from holdfast.wiring import backend as connect_backend
from stores import STORES, Store


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """The session's Redis. It never waits for a disk: no test of this suite cuts the power."""
    with Redis(appendfsync="no") as server:
        yield server


@pytest.fixture
def empty_redis(redis_server: Redis) -> str:
    """The URL of the session's Redis, with nothing in it."""
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param](request)


@pytest.fixture
async def backend(store: Store) -> AsyncIterator[Backend]:
    """An opened backend on an empty store."""
    opened = connect_backend(store.url, connections=8)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def bus(backend: Backend) -> AsyncIterator[Bus]:
    """A bus over the same store as `backend`."""
    async with Bus([backend.fork()]) as opened:
        yield opened
