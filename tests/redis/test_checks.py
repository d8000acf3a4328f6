"""What `check` says of a server's real settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from holdfast.backends.redis import RedisBackend
from holdfast.embedded import Redis
from kit import CHANNEL, MINUTE, publish, subscribe


@pytest.fixture
def settings(client: redis.Redis) -> Iterator[redis.Redis]:
    """The client; what a test changed is put back."""
    names = ("appendonly", "appendfsync", "maxmemory-policy", "save")
    before = {name: client.config_get(name)[name] for name in names}
    yield client
    for name, value in before.items():
        client.config_set(name, value)


async def said(backend: RedisBackend, subject: str) -> tuple[str, str]:
    [finding] = [each for each in await backend.check() if each.subject == subject]
    return finding.level, finding.message


@pytest.mark.parametrize(
    ("value", "level", "words"),
    [("always", "ok", "loses nothing"), ("everysec", "warning", "second"), ("no", "warning", "not written")],
)
async def test_the_flush_to_disk_is_told_in_words(
    backend: RedisBackend, settings: redis.Redis, value: str, level: str, words: str
) -> None:
    settings.config_set("appendfsync", value)
    told = await said(backend, "appendfsync")
    assert (told[0], words in told[1]) == (level, True)


async def test_no_append_only_file_is_an_error(backend: RedisBackend, settings: redis.Redis) -> None:
    settings.config_set("appendonly", "no")
    assert await said(backend, "appendonly") == (
        "error",
        "no: a power cut or a restart loses everything; set appendonly yes and appendfsync always",
    )
    settings.config_set("save", "60 1000")
    assert "last snapshot (save 60 1000)" in (await said(backend, "appendonly"))[1]


async def test_eviction_is_an_error_once_there_is_a_limit(
    backend: RedisBackend, settings: redis.Redis
) -> None:
    assert (await said(backend, "maxmemory-policy"))[0] == "ok"
    settings.config_set("maxmemory-policy", "volatile-ttl")
    assert "ids before their time" in (await said(backend, "maxmemory-policy"))[1]
    settings.config_set("maxmemory-policy", "allkeys-lru")
    assert (await said(backend, "maxmemory-policy"))[0] == "warning"
    settings.config_set("maxmemory", "1gb")
    assert (await said(backend, "maxmemory-policy"))[0] == "error"


async def test_what_must_not_expire_is_named_and_kept(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert [each for each in await backend.check() if each.subject == "expiry"] == []
    names = [CHANNEL, "{holdfast}:store", "{holdfast}:consumer:1"]
    for name in names:
        assert client.expire(name, 3600)
    level, message = await said(backend, "expiry")
    assert (level, [name for name in names if name not in message]) == ("error", [])
    assert [client.ttl(name) for name in names] == [-1, -1, -1]


async def test_a_log_that_is_used_does_not_expire(backend: RedisBackend, client: redis.Redis) -> None:
    await publish(backend, "a")
    client.expire(CHANNEL, 3600)
    await publish(backend, "b")
    assert client.ttl(CHANNEL) == -1
    client.expire(CHANNEL, 3600)
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    assert lock is not None
    await backend.retention.trim(CHANNEL, await backend.now() - MINUTE, 10, lock)
    assert client.ttl(CHANNEL) == -1


async def test_where_config_is_forbidden_it_says_unknown(relaxed_redis: Redis, client: redis.Redis) -> None:
    client.execute_command("ACL", "SETUSER", "guest", "on", ">pass", "~*", "&*", "+@all", "-config", "-info")
    try:
        backend = RedisBackend(relaxed_redis.url.replace(f":{relaxed_redis.secret}@", "guest:pass@"))
        await backend.open()
        findings = await backend.check()
        await backend.close()
    finally:
        client.execute_command("ACL", "DELUSER", "guest")
    assert [(each.level, "unknown" in each.message) for each in findings] == [("warning", True)] * 2


async def test_the_version_is_named(backend: RedisBackend) -> None:
    level, message = await said(backend, "version")
    assert (level, message.startswith("Redis 6.2")) == ("ok", True)
