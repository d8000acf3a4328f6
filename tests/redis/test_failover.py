"""Failover: a replica without the last writes takes over, and no holder from before passes for a new one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import NamedTuple

import pytest
import redis

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.embedded import Redis
from holdfast.model.errors import LockLost, Outdated
from holdfast.model.policy import Policy
from holdfast_chaos.proxy import Proxy
from kit import CHANNEL, CONSUMER, MINUTE, claim_one, complete, publish, read_all, subscribe, until

SWEEPER = "gbe:lock:sweeper"
RECORD = "gbe.state.tasks.t-1"


class Pair(NamedTuple):
    """A primary and its replica, each with a plain client."""

    primary: Redis
    replica: Redis
    first: redis.Redis
    second: redis.Redis

    def promote(self) -> None:
        """The replica takes over with what it has; the primary goes on alone."""
        self.second.execute_command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def servers() -> Iterator[Pair]:
    with (
        Redis(appendfsync="no") as primary,
        Redis(appendfsync="no") as replica,
        redis.Redis.from_url(primary.url) as first,
        redis.Redis.from_url(replica.url) as second,
    ):
        # One password for both, as behind one name.
        first.config_set("masterauth", replica.secret)
        first.config_set("requirepass", replica.secret)
        second.config_set("masterauth", replica.secret)
        second.execute_command("REPLICAOF", "127.0.0.1", primary.port)
        yield Pair(primary, replica, first, second)


@pytest.fixture
async def proxy(servers: Pair) -> AsyncIterator[Proxy]:
    async with Proxy("127.0.0.1", servers.primary.port) as way:
        yield way


@pytest.fixture
async def backend(servers: Pair, proxy: Proxy) -> AsyncIterator[RedisBackend]:
    opened = RedisBackend(proxy.url(servers.replica.url))
    await opened.open()
    yield opened
    await opened.close()


async def replicated(servers: Pair) -> None:
    """Wait until the replica has everything. (`WAIT` is about the writes of its own connection only.)"""
    written = servers.first.info("replication")["master_repl_offset"]

    async def caught_up() -> bool:
        found = servers.second.info("replication")
        return found["master_link_status"] == "up" and found["slave_repl_offset"] >= written

    await until(caught_up, 60)


async def test_a_token_that_the_failover_lost_is_not_given_again(
    servers: Pair, proxy: Proxy, backend: RedisBackend
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await replicated(servers)
    servers.promote()
    stale = await claim_one(backend)
    old = await backend.locks.acquire(SWEEPER, "old", MINUTE)
    assert old is not None
    proxy._server = ("127.0.0.1", servers.replica.port)
    await proxy.reset()
    other = backend.fork()
    await other.open()
    fresh = await claim_one(other)
    new = await other.locks.acquire(SWEEPER, "new", MINUTE)
    assert new is not None
    assert (fresh.token > stale.token, new.token > old.token) == (True, True)
    assert not await complete(other, stale), "its lease was lost with the claim"
    with pytest.raises(LockLost):
        await other.locks.renew(old, MINUTE)
    assert await complete(other, fresh)
    await other.close()


async def test_no_revision_is_given_twice(servers: Pair, proxy: Proxy, backend: RedisBackend) -> None:
    await subscribe(backend)
    both = await backend.records.put(RECORD, {"by": "both"}, 0) or 0
    await replicated(servers)
    servers.promote()
    written = await backend.records.put(RECORD, {"by": "the old"}, both)
    revision = (await subscribe(backend, max_attempts=3)).revision
    assert written is not None
    proxy._server = ("127.0.0.1", servers.replica.port)
    await proxy.reset()
    other = backend.fork()
    await other.open()
    new = await other.records.put(RECORD, {"by": "the new"}, both)
    assert new is not None
    assert new > written
    assert await other.records.put(RECORD, {"by": "the old"}, written) is None, "it never saw the new"
    assert await other.records.put(RECORD, {"by": "the new"}, new) == new + 1
    assert (await subscribe(other, max_attempts=4)).revision > revision
    with pytest.raises(Outdated):
        await other.channels.subscribe(CHANNEL, CONSUMER, Policy.of(max_attempts=5), revision=revision)
    await other.close()


async def test_a_demoted_primary_is_left_for_the_new_one(
    servers: Pair, proxy: Proxy, backend: RedisBackend
) -> None:
    await publish(backend, "a")
    await replicated(servers)
    servers.promote()
    servers.first.execute_command("REPLICAOF", "127.0.0.1", 1)  # nobody's, which is enough to be read-only
    proxy._server = ("127.0.0.1", servers.replica.port)  # connections that are open stay as they are
    with pytest.raises(holdfast.Unavailable, match="READONLY"):
        await publish(backend, "b")
    [receipt] = await publish(backend, "b")
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b"]
    assert servers.second.xlen(CHANNEL) == 2
    assert not receipt.duplicate


async def test_an_empty_server_gives_no_token_of_a_lock_again(servers: Pair, backend: RedisBackend) -> None:
    old = await backend.locks.acquire(SWEEPER, "old", MINUTE)
    servers.first.flushall()
    new = await backend.locks.acquire(SWEEPER, "new", MINUTE)
    assert old is not None
    assert new is not None
    assert new.token > old.token
