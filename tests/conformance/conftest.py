"""A backend on an empty store for each test, once for every kind of store."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator

import nats
import pytest
import redis

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.embedded import Nats, Redis
from holdfast.wiring import backend as connect_backend
from stores import STORES, Store

MEMORY, ENOUGH = "/dev/shm", 1 << 30  # noqa: S108 - the server's folder in it is private


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


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    """The session's NATS, in memory where there is some: each batch makes and removes a folder."""
    with pytest.MonkeyPatch.context() as patch:
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
            patch.setattr(tempfile, "tempdir", MEMORY)
        server = Nats(sync_interval="2m").start()
    yield server
    server.stop()


@pytest.fixture
async def empty_nats(nats_server: Nats) -> str:
    """The URL of the session's NATS, without any stream."""
    async with await nats.connect(nats_server.url) as client:
        for each in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(each.config.name or "")
    return nats_server.url


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
