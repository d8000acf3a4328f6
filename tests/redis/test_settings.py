"""Settings of the store: what a client does not say stays as it is."""

from __future__ import annotations

import redis

from holdfast.backends.redis import RedisBackend
from holdfast.embedded import Redis

DAY = 86_400_000


async def test_a_client_without_settings_leaves_those_of_the_store(
    relaxed_redis: Redis, client: redis.Redis
) -> None:
    for given, expected in [
        ({}, [7 * DAY, 14 * DAY]),
        ({"history": "1d", "dedupe_window": "30d"}, [DAY, 30 * DAY]),
        ({}, [DAY, 30 * DAY]),
        ({"history": "2d"}, [2 * DAY, 30 * DAY]),
    ]:
        backend = RedisBackend(relaxed_redis.url, **given)  # type: ignore[arg-type]
        await backend.open()
        await backend.close()
        stored = client.hmget("{holdfast}:store", "history", "window")
        assert [int(value or 0) for value in stored] == expected
