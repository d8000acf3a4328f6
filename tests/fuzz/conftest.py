"""Two ways to fuzz: the same few examples in every run, or very many random ones (`HOLDFAST_FUZZ=long`)."""

from __future__ import annotations

from collections.abc import Iterator

import nats
import pytest
import redis
from hypothesis import HealthCheck, settings

from holdfast.embedded import Nats, Redis

SMALL, LARGE = 30, 3_000
_SHARED = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}

settings.register_profile("fuzz", derandomize=True, max_examples=SMALL, **_SHARED)  # type: ignore[arg-type]
settings.register_profile("fuzz-long", max_examples=LARGE, print_blob=True, **_SHARED)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    with Redis(appendfsync="no") as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[Nats]:
    with Nats(sync_interval="2m") as server:
        yield server


@pytest.fixture
def empty_redis(redis_server: Redis) -> str:
    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
async def empty_nats(nats_server: Nats) -> str:
    async with await nats.connect(nats_server.url) as client:
        for each in await client.jetstream().streams_info():
            await client.jetstream().delete_stream(each.config.name or "")
    return nats_server.url


@pytest.fixture(params=["database", "empty_redis", "empty_nats"], ids=["postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store of each kind."""
    address: str = request.getfixturevalue(request.param)
    return address
