"""Costs that must not grow: a lifecycle read with what waits, a claim with a long lane, memory with time."""

from __future__ import annotations

from datetime import timedelta
from statistics import median

import redis

from holdfast.backends.redis import RedisBackend
from holdfast.embedded import Redis
from holdfast.model.decide import describe
from holdfast.model.event import Event
from holdfast.model.job import Retry
from kit import (
    CHANNEL,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    read_all,
    record,
    step,
    subscribe,
)

FEW, MANY = 2_000, 60_000


async def cost(client: redis.Redis, verb: str, backend: RedisBackend) -> float:
    """Microseconds of the server for one call, the middle of many."""
    spent = []
    for _ in range(15):
        client.config_resetstat()
        await (backend.lifecycle.due(500) if verb == "due" else claim(backend, 5))
        spent.append(float(client.info("commandstats")["cmdstat_evalsha"]["usec"]))
    return median(spent)


async def fill(backend: RedisBackend, start: int, stop: int) -> None:
    at = await backend.now() + 60 * MINUTE
    for first in range(start, stop, 2_000):
        events = [Event(n, f"e-{n}") for n in range(first, min(first + 2_000, stop))]
        await backend.log.publish(CHANNEL, events, at=at if first % 4_000 else None)


async def take_up_special(backend: RedisBackend) -> None:
    """What is scheduled is taken up once, by whoever comes next: a page of it costs what it is."""
    while (await step(backend)).backfilled:
        pass


async def test_a_lifecycle_read_does_not_depend_on_how_many_jobs_wait(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend, expires_after="1d")
    await fill(backend, 0, FEW)
    await take_up_special(backend)
    before = await cost(client, "due", backend)
    await fill(backend, FEW, MANY)
    await take_up_special(backend)
    after = await cost(client, "due", backend)
    assert (await backend.lifecycle.due(1)).load == MANY
    assert after < 3 * before + 50, f"{before} µs with {FEW}, {after} µs with {MANY}"


async def test_a_long_lane_costs_the_other_keys_nothing(backend: RedisBackend, client: redis.Redis) -> None:
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(n, f"hot-{n}", key="hot") for n in range(5000)])
    head = await claim_one(backend)
    for n in range(200):
        await publish(backend, f"cold-{n}", key=f"key-{n}")
    await claim_one(backend)
    assert client.zcard("{holdfast}:ready:1") == 99, "of the hot key only the head could be claimed"
    assert len(await claim(backend, 100)) == 100
    assert client.zcard("{holdfast}:ready:1") == 99
    blocked = await cost(client, "claim", backend)
    assert blocked < 1500, f"{blocked} µs for five jobs behind a lane of 5000"
    assert await complete(backend, head)
    assert "hot-1" in ids(await claim(backend, 100))


async def test_a_retry_does_not_write_every_earlier_error_again(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend, max_attempts=1000)
    await publish(backend, "a")
    written = []
    for turn in range(100):
        before = int(client.info("persistence")["aof_current_size"])
        job = await claim_one(backend)
        assert await backend.leases.retry([Retry(job, timedelta(0), describe(f"{turn} " + "x" * 3000))])
        written.append(int(client.info("persistence")["aof_current_size"]) - before)
    assert max(written) < 30_000, "some pages, and not the 300 kB of all of them"
    errors = (await record(backend, "a")).errors
    told = [(each["attempt"], each["error"].split()[0]) for each in errors]
    assert told == [(turn + 1, str(turn)) for turn in range(100)]


async def test_what_has_ended_does_not_stay_for_ever(client: redis.Redis, relaxed_redis: Redis) -> None:
    backend = RedisBackend(relaxed_redis.url, dedupe_window="2h", history="1h")
    await backend.open()
    await subscribe(backend)
    await publish(backend, "done", "dead", "retried")
    done, dead, retried = await claim(backend)
    assert await complete(backend, done)
    assert await bury(backend, dead)
    assert await fail(backend, retried)
    assert await complete(backend, await claim_one(backend))
    assert 0 < client.pttl("{holdfast}:block:1:512") <= 3_600_000
    kept = {name: client.pttl(name) for name in client.scan_iter("{holdfast}:job:*")}
    assert 0 < kept[f"{{holdfast}}:job:1:{retried.id}"] <= 3_600_000
    assert kept[f"{{holdfast}}:job:1:{dead.id}"] == -1, "a dead letter stays"
    assert 0 < client.pttl(f"{{holdfast}}:event:{CHANNEL}/7:default/done") <= 7_200_000
    assert client.pttl(f"{{holdfast}}:event:{CHANNEL}/7:default/dead") == -1, "and is found by its event"
    assert len(await read_all(backend)) == 3
    await backend.close()
