"""Sentinels: the URL names them, and they name the primary; and publishes that wait for replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

import pytest
import redis
from redis.asyncio.connection import SSLConnection
from redis.asyncio.sentinel import SentinelConnectionPool, SentinelManagedSSLConnection

import holdfast
from holdfast.backends.redis import RedisBackend, session
from holdfast.backends.redis.pool import make_pool
from holdfast.embedded import Redis
from holdfast.embedded.files import write_private
from holdfast.embedded.process import answers
from kit import CHANNEL, claim_one, complete, publish, read_all, subscribe, until

SERVICE = "mymaster"
_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {secret}
sentinel sentinel-pass {secret}
sentinel monitor {service} 127.0.0.1 {primary} 2
sentinel auth-pass {service} {password}
sentinel down-after-milliseconds {service} 500
sentinel failover-timeout {service} 3000
"""


class SentinelServer(Redis):
    """One of three that watch a primary."""

    def __init__(self, primary: Redis, secret: str) -> None:
        super().__init__()
        self._primary, self._password = primary, secret

    def prepare(self) -> None:
        config = _CONFIG.format(
            port=self.port,
            secret=self._password,
            service=SERVICE,
            primary=self._primary.port,
            password=self._password,
        )
        write_private(self.folder / "redis.conf", config)

    def command(self) -> list[str]:
        return [*super().command(), "--sentinel"]

    def ready(self) -> bool:
        return answers(self.port, f"AUTH {self._password}\r\nPING\r\n".encode(), b"+PONG")


class Watched(NamedTuple):
    """A primary and its replica, watched by three sentinels."""

    primary: Redis
    replica: Redis
    sentinels: list[SentinelServer]
    password: str

    def url(self, more: str = "") -> str:
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return (
            f"redis+sentinel://:{self.password}@{hosts}/{SERVICE}/0?sentinel_password={self.password}{more}"
        )


@pytest.fixture
def servers() -> Iterator[Watched]:
    with ExitStack() as running:
        primary, replica = (running.enter_context(Redis(appendfsync="no")) for _ in range(2))
        password = primary.secret
        with redis.Redis.from_url(replica.url) as client:
            client.config_set("masterauth", password)
            client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
            client.config_set("requirepass", password)
        sentinels = [running.enter_context(SentinelServer(primary, password)) for _ in range(3)]
        yield Watched(primary, replica, sentinels, password)


@pytest.fixture
async def backend(servers: Watched) -> AsyncIterator[RedisBackend]:
    """One whose publishes wait for the replica, which the sentinels know."""

    async def known() -> bool:
        found = []
        for each in servers.sentinels:
            with redis.Redis(port=each.port, password=servers.password) as client:
                [state] = client.sentinel_masters().values()
                found.append(state["num-slaves"] == 1 and state["num-other-sentinels"] == 2)
        return all(found)

    await until(known, 60)
    opened = RedisBackend(servers.url("&replicas=1"))
    await opened.open()
    yield opened
    await opened.close()


async def test_a_failover_loses_nothing_and_is_followed(servers: Watched, backend: RedisBackend) -> None:
    woken = asyncio.Event()
    await subscribe(backend)
    await publish(backend, "a", "b")
    stale = await claim_one(backend)
    listener = await backend.listen([CHANNEL], lambda _: woken.set())
    servers.primary.kill()

    async def promoted() -> bool:
        try:
            with redis.Redis(port=servers.replica.port, password=servers.password) as client:
                return client.info("replication")["role"] == "master"
        except redis.ConnectionError:  # its clients are disconnected when its role changes
            return False

    await until(promoted, 60)
    servers.primary.start()
    with redis.Redis.from_url(servers.primary.url) as client:  # the sentinels make it the replica
        client.config_set("masterauth", servers.password)

    async def published() -> bool:
        woken.clear()
        try:
            await publish(backend, "c")
        except holdfast.Unavailable:
            return False
        return True

    await until(published, 60)
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b", "c"]
    fresh = await claim_one(backend)
    assert fresh.token > stale.token
    # Where the claim reached the replica it goes on, and the other job is claimed.
    assert await complete(backend, stale) is (fresh.event.id != stale.event.id)
    assert await complete(backend, fresh)

    async def heard() -> bool:
        await publish(backend, f"d-{len(await read_all(backend))}")
        return woken.is_set()

    woken.clear()
    await until(heard, 60)
    await listener.close()


async def test_a_publish_that_no_replica_has_is_not_acknowledged(
    servers: Watched, backend: RedisBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_REPLICATED", 100)
    await publish(backend, "a")
    servers.replica.pause()
    try:
        for _ in range(2):  # what is there already is not acknowledged either
            with pytest.raises(holdfast.Unavailable, match="0 of the 1 replicas"):
                await publish(backend, "b")
        with pytest.raises(holdfast.Unavailable, match="0 of the 1 replicas"):
            await publish(backend, *(f"bulk-{number}" for number in range(300)))
    finally:
        servers.replica.resume()

    async def repeated() -> bool:
        with suppress(holdfast.Unavailable):
            return (await publish(backend, "b"))[0].duplicate
        return False

    await until(repeated, 60)
    assert len(await read_all(backend)) == 302


async def test_the_check_says_what_a_failover_can_lose(servers: Watched, backend: RedisBackend) -> None:
    async def of(checked: RedisBackend) -> tuple[str, str]:
        [finding] = [each for each in await checked.check() if each.subject == "replication"]
        return finding.level, finding.message

    level, text = await of(backend)
    assert (level, "every replica" in text) == ("ok", True)
    unsafe = RedisBackend(servers.url())
    await unsafe.open()
    level, text = await of(unsafe)
    assert (level, "replicas=1 in" in text) == ("warning", True)
    await unsafe.close()


async def test_sentinels_that_do_not_know_the_name_or_do_not_answer_are_named(servers: Watched) -> None:
    other = RedisBackend(servers.url().replace(SERVICE, "other"))
    with pytest.raises(holdfast.Unavailable, match="No master found for 'other'") as found:
        await other.open()
    nobody = RedisBackend(
        "redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:2/mymaster/0?sentinel_password=hidden"
    )
    with pytest.raises(holdfast.Unavailable, match=r"127\.0\.0\.1:1,127\.0\.0\.1:2/mymaster") as silent:
        await nobody.open()
    for error in (found, silent):
        assert not {servers.password, "secret", "hidden"} & set(str(error.value).split())
        assert servers.password not in str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://127.0.0.1:1", "which primary"),
        ("redis+sentinel://127.0.0.1:1/", "which primary"),
        ("redis://127.0.0.1:1/0?replicas=two", "'two'"),
        ("redis://127.0.0.1:1/0?replicas=-1", "'-1'"),
    ],
)
async def test_a_url_that_cannot_be_used_is_refused(url: str, said: str) -> None:
    with pytest.raises(holdfast.InvalidInput, match=said):
        await RedisBackend(url).open()


def test_the_url_says_how_both_are_reached() -> None:
    pool = make_pool(
        "rediss+sentinel://me:p%40ss@s1,s2:7000/other%2Done/3?sentinel_username=w&sentinel_password=x&replicas=2"
    )
    assert isinstance(pool, SentinelConnectionPool)
    assert (pool.service_name, pool.connection_class) == ("other-one", SentinelManagedSSLConnection)
    server = pool.connection_kwargs
    assert (server["username"], server["password"], server["db"]) == ("me", "p@ss", 3)
    watchers = [each.connection_pool for each in pool.sentinel_manager.sentinels]
    where = [(each.connection_kwargs["host"], each.connection_kwargs["port"]) for each in watchers]
    assert where == [("s1", 26379), ("s2", 7000)]
    for each in watchers:
        assert each.connection_class is SSLConnection
        assert (each.connection_kwargs["username"], each.connection_kwargs["password"]) == ("w", "x")


async def test_an_app_reaches_its_store_through_sentinels(servers: Watched, backend: RedisBackend) -> None:
    async with holdfast.connect(servers.url()) as hf:
        await hf.subscribe("orders", "billing")
        await hf.publish("orders", {"total": 12}, id="o-1")
        [job] = await hf.poll("orders", "billing")
        await hf.finalize(job, success=True)
        assert await hf.poll("orders", "billing") == []
