"""Full memory: a server that has reached `maxmemory` refuses what is new, and lets go of what is old."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.model.event import Event
from holdfast.model.states import State
from holdfast.upkeep.rules import Keep, Rules
from holdfast.upkeep.sweeper import Sweeper
from kit import CHANNEL, LEASE, MINUTE, bury, claim, publish, read_all, states, step, subscribe

DAY = timedelta(days=1)


@pytest.fixture
def full(client: redis.Redis) -> Iterator[redis.Redis]:
    """A client of the server, which has no memory left from the first write of a test on."""
    yield client
    client.config_set("maxmemory", 0)


async def test_the_log_is_read_archived_and_trimmed(backend: RedisBackend, full: redis.Redis) -> None:
    await backend.cursors.attach(CHANNEL, "archiver")
    await backend.log.publish(CHANNEL, [Event(n, f"e-{n}") for n in range(700)])
    for n in range(1200):
        full.xadd(CHANNEL, {"data": n})  # nobody has noted milestones of these
    await backend.advance(DAY)
    full.config_set("maxmemory", 1)
    with pytest.raises(holdfast.Overloaded):
        await publish(backend, "more")
    assert (await backend.retention.size(CHANNEL)).events == len(await read_all(backend)) == 1900
    extent = await backend.log.extent(CHANNEL)
    assert extent.last is not None
    assert sum(cut.rows for cut in await backend.log.cuts(CHANNEL, None, 5_000, 1_000)) == 1900
    pages = [page async for page in backend.log.pages(CHANNEL, None, extent.last, 1_000)]
    assert sum(len(page.ids) for page in pages) == 1900
    assert await backend.cursors.move(CHANNEL, "archiver", None, extent.last)
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    assert lock is not None
    lock = await backend.locks.renew(lock, MINUTE)
    trimmed = await backend.retention.trim(CHANNEL, await backend.now(), 10_000, lock)
    assert (trimmed.removed, await read_all(backend)) == (1900, [])
    assert await backend.locks.release(lock)


async def test_jobs_go_through_their_lives(backend: RedisBackend, full: redis.Redis) -> None:
    await subscribe(backend, max_abandonments=2)
    await publish(backend, "dead", "left")
    await publish(backend, "later", at=await backend.now() + MINUTE)
    dead, _ = await claim(backend)
    await backend.advance(LEASE)
    full.config_set("maxmemory", 1)
    assert await bury(backend, dead)
    applied = await step(backend)
    assert (applied.abandoned, applied.promoted) == (1, 1)
    assert len(await claim(backend)) == 2
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    assert lock is not None
    assert await backend.retention.purge_dead(CHANNEL, await backend.now(), 10, lock) == {"billing": 1}
    assert await states(backend) == {State.LEASED: 2, State.PURGED: 1}


async def test_a_sweep_trims_before_it_tells_of_stuck_work(backend: RedisBackend, full: redis.Redis) -> None:
    await subscribe(backend, max_abandonments=1)
    await publish(backend, "old", "stuck")
    await claim(backend)
    await backend.advance(DAY)
    full.config_set("maxmemory", 1)
    rules = Rules(retention={CHANNEL: Keep(max_age=MINUTE)})
    with pytest.raises(holdfast.Overloaded):  # nothing else was in its way, and so there is still no memory
        await Sweeper(backend, rules, "me").run_once()
    assert (await states(backend), await read_all(backend)) == ({State.DEAD: 2}, [])
    full.config_set("maxmemory", 0)
    swept = await Sweeper(backend, rules, "me").run_once()
    assert swept is not None
    told = [entry.event.json() for entry in await read_all(backend, "gbe.events.system.error")]
    assert [each["kind"] for each in told] == ["exhausted"] * 2


async def test_a_server_that_was_restarted_full_can_be_opened(
    backend: RedisBackend, full: redis.Redis
) -> None:
    await publish(backend, "a")
    full.hset("{holdfast}:store", "run_id", "another server")
    full.config_set("maxmemory", 1)
    reborn = backend.fork()
    await reborn.open()
    assert len(await read_all(reborn)) == 1
    await reborn.close()
