"""Where the design of the sweeper was wrong about Redis: each of these fails on a sweeper that follows it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
import redis

from holdfast.backends.redis import RedisBackend, keys
from holdfast.model.errors import LockLost
from holdfast.model.names import matches
from holdfast.model.upkeep import Hold, Lock, Trim
from kit import CHANNEL, MINUTE, claim, ids, publish, read_all, subscribe

LOCK = "gbe:lock:sweeper"
ALIVE = timedelta(minutes=5)


@pytest.fixture
async def lock(backend: RedisBackend) -> Lock:
    taken = await backend.locks.acquire(LOCK, "instance-1", MINUTE)
    assert taken is not None
    return taken


async def trim(backend: RedisBackend, lock: Lock, groups: Sequence[str] = (), channel: str = CHANNEL) -> Trim:
    await backend.advance(timedelta(hours=1))
    return await backend.retention.trim(channel, await backend.now(), 1000, lock, groups=groups)


def read(client: redis.Redis, count: int, group: str = "archiver", member: str = "m-1") -> list[str]:
    """A foreign member takes entries, and acknowledges none."""
    answer = client.xreadgroup(group, member, {CHANNEL: ">"}, count=count)
    return [entry for _, entries in answer for entry, _ in entries]


# 000.1: XPENDING counts what was delivered and not acknowledged, not what was never delivered


async def test_a_group_that_has_never_read_anything_guards_everything(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a", "b")
    client.xgroup_create(CHANNEL, "archiver", id="0")
    assert client.xpending(CHANNEL, "archiver")["pending"] == 0, "the guard of old would see no lag"
    assert await trim(backend, lock, ["archiver"]) == Trim(0, more=False, hold=Hold("archiver", None))
    assert client.xlen(CHANNEL) == 2


async def test_a_group_guards_what_it_has_not_acknowledged_and_what_it_has_not_seen(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    a, b, c, _ = [receipt.position for receipt in await publish(backend, "a", "b", "c", "d")]
    client.xgroup_create(CHANNEL, "archiver", id="0")
    first, second, third = read(client, 3)
    client.xack(CHANNEL, "archiver", first, third)
    assert await trim(backend, lock, ["archiver"]) == Trim(1, more=False, hold=Hold("archiver", a))
    client.xack(CHANNEL, "archiver", second)
    assert await trim(backend, lock, ["archiver"]) == Trim(2, more=False, hold=Hold("archiver", c))
    client.xack(CHANNEL, "archiver", *read(client, 10))
    assert await trim(backend, lock, ["archiver"]) == Trim(1, more=False, hold=None)
    assert b < c


async def test_the_slowest_group_guards_and_one_that_is_not_listed_does_not(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a", "b")
    for name in ("done", "slow", "unlisted"):
        client.xgroup_create(CHANNEL, name, id="0")
    client.xack(CHANNEL, "done", *read(client, 10, "done"))
    assert (await trim(backend, lock, ["done", "slow"])).hold == Hold("slow", None)
    assert await trim(backend, lock, ["done"]) == Trim(2, more=False, hold=None)


async def test_a_listed_group_that_does_not_exist_guards_everything(
    backend: RedisBackend, lock: Lock
) -> None:
    await publish(backend, "a")
    assert await trim(backend, lock, ["archiver"]) == Trim(0, more=False, hold=Hold("archiver", None))


# 000.2: nobody redelivers what was not acknowledged; a cursor that moves after the write needs nobody


async def test_a_reader_that_died_before_its_cursor_moved_reads_the_same_again(backend: RedisBackend) -> None:
    await publish(backend, "a", "b", "c")
    cursor = await backend.cursors.attach(CHANNEL, "archiver")
    last = (await backend.log.extent(CHANNEL)).last
    assert last is not None
    first = [page.ids async for page in backend.log.pages(CHANNEL, cursor.position, last, 10)]
    reborn = backend.fork()
    await reborn.open()
    [again] = await reborn.cursors.all(CHANNEL)
    assert again == cursor
    await publish(backend, "d")
    assert [page.ids async for page in reborn.log.pages(CHANNEL, again.position, last, 10)] == first
    await reborn.close()


# 000.6: DEL without an owner check frees somebody else's lock


async def test_a_plain_del_by_somebody_else_frees_nothing(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    assert client.delete(LOCK) == 1
    assert await backend.locks.acquire(LOCK, "instance-2", MINUTE) is None
    assert (await backend.locks.renew(lock, MINUTE)).token == lock.token
    assert client.get(LOCK) == "instance-1", "and it is shown again"


async def test_a_sweep_that_outlasted_its_lock_frees_and_changes_nothing(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await publish(backend, "a")
    await backend.advance(MINUTE)
    newer = await backend.locks.acquire(LOCK, "instance-2", MINUTE)
    assert newer is not None
    assert newer.token > lock.token
    assert not await backend.locks.release(lock)
    assert client.get(LOCK) == "instance-2"
    with pytest.raises(LockLost):
        await trim(backend, lock)
    assert client.xlen(CHANNEL) == 1


async def test_the_token_goes_on_after_the_lock_expired_and_was_removed(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await backend.advance(MINUTE)
    client.delete(LOCK)
    again = await backend.locks.acquire(LOCK, "instance-1", MINUTE)
    assert again is not None
    assert again.token == lock.token + 1


async def test_a_plain_set_nx_is_kept_out_and_is_respected(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    assert 0 < client.pttl(LOCK) <= 60_000
    assert client.set(LOCK, "foreign", nx=True, px=60_000) is None
    assert await backend.locks.release(lock)
    assert client.set(LOCK, "foreign", nx=True, px=60_000)
    assert await backend.locks.acquire(LOCK, "instance-1", MINUTE) is None
    with pytest.raises(LockLost):
        await backend.locks.renew(lock, MINUTE)
    assert not await backend.locks.release(lock)
    assert client.get(LOCK) == "foreign"


# 000.7: a wildcard is no key


async def test_a_pattern_selects_channels_and_never_becomes_a_key(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    pattern = "gbe.events.audit.*"
    for channel in ("gbe.events.audit.change", "gbe.events.audit.login", "gbe.events.auth.login"):
        await publish(backend, "a", channel=channel)
    assert client.xtrim(keys.stream(pattern), minid="9999999999999") == 0, (
        "it would trim nothing, and say nothing"
    )
    chosen = [channel for channel in await backend.channels.names() if matches(pattern, channel)]
    for channel in chosen:
        assert (await trim(backend, lock, channel=channel)).removed == 1
    assert {str(key) for key in client.scan_iter("gbe:events:*")} == {
        "gbe:events:audit:change",
        "gbe:events:audit:login",
        "gbe:events:auth:login",
    }
    assert client.xlen("gbe:events:auth:login") == 1


# 000.8: age-trimming a task queue deletes undelivered work


async def test_work_that_nobody_has_done_is_not_trimmed_however_old(
    backend: RedisBackend, client: redis.Redis, lock: Lock
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    client.xadd(CHANNEL, {"id": "foreign", "data": "1"})
    await backend.advance(timedelta(days=30))
    assert await trim(backend, lock) == Trim(0, more=False, hold=Hold("billing", None))
    jobs = await claim(backend)
    assert sorted(ids(jobs)) == ["a", "b", "foreign"]
    assert all(await backend.leases.complete(jobs))
    assert await trim(backend, lock) == Trim(3, more=False, hold=None)
    assert await read_all(backend) == []
