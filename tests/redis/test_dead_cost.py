"""Costs that must not grow with the dead: in commands of the server, those that scripts run included."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import redis

from holdfast.backends.redis import RedisBackend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.decide import describe
from holdfast.model.event import Event
from holdfast.model.job import Burial, Reason
from kit import CHANNEL, CONSUMER, MINUTE, claim, subscribe

FEW, MANY = 1_000, 8_000
ERRORS = [describe(f"{word} failed") for word in ("disk", "mail", "bank", "tax")]


async def die(backend: RedisBackend, first: int, stop: int) -> None:
    for start in range(first, stop, 500):
        await backend.log.publish(CHANNEL, [Event(n, f"e-{n}") for n in range(start, start + 500)])
        jobs = await claim(backend, 500)
        burials = [Burial(job, list(Reason)[n % 4], ERRORS[n % 4]) for n, job in enumerate(jobs)]
        assert all(await backend.leases.bury(burials))


async def commands(client: redis.Redis, call: Awaitable[object]) -> int:
    """How many commands the server ran for one call."""
    client.config_resetstat()
    await call
    return sum(each["calls"] for name, each in client.info("commandstats").items() if "config" not in name)


async def looks(backend: RedisBackend, client: redis.Redis) -> dict[str, int]:
    mine = DeadFilter(CHANNEL, CONSUMER)
    cluster = DeadFilter(CHANNEL, CONSUMER, fingerprint=ERRORS[1].fingerprint)
    after = (await backend.deadletters.page(mine, None, 100)).after
    calls = {
        "counts": backend.deadletters.counts(),
        "clusters": backend.deadletters.clusters(None, None, 10),
        "page": backend.deadletters.page(mine, after, 20),
        "cluster's page": backend.deadletters.page(cluster, None, 20),
        "page of all": backend.deadletters.page(DeadFilter(), after, 20),
        "reason": backend.deadletters.page(DeadFilter(CHANNEL, CONSUMER, reason="expired"), after, 20),
        "search": backend.deadletters.page(DeadFilter(text="no such"), after, 20),
    }
    return {name: await commands(client, call) for name, call in calls.items()}


async def test_looking_at_the_dead_does_not_cost_in_how_many_there_are(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await subscribe(backend, "other")
    await die(backend, 0, FEW)
    for job in await claim(backend, 500, consumer="other"):
        await backend.leases.bury([Burial(job, Reason.TERMINAL, ERRORS[0])])
    few = await looks(backend, client)
    assert few["page of all"] < 100, "of two consumers, no more were looked at than shown"
    await die(backend, FEW, MANY)
    many = await looks(backend, client)
    assert many.pop("search") < 3_000, "2,000 of them were looked at"
    for name, cost in many.items():
        assert cost <= few[name] + 20, f"{name}: {few[name]} commands with {FEW}, {cost} with {MANY}"


async def test_large_events_are_buried_and_come_back_a_few_at_a_time(
    backend: RedisBackend, client: redis.Redis
) -> None:
    """One script with all of them would hold the server for as long as it takes to copy them."""
    await backend.channels.create("grave")
    await subscribe(backend, dead_letter="grave")
    for start in range(0, 60, 10):
        await backend.log.publish(CHANNEL, [Event(b"x" * 400_000, f"e-{start + n}") for n in range(10)])
    jobs = await claim(backend)
    client.config_resetstat()
    assert await backend.leases.bury([Burial(job, Reason.TERMINAL, ERRORS[0]) for job in jobs]) == [True] * 60
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] >= 5
    assert client.xlen("grave") == 60
    client.xtrim(CHANNEL, maxlen=0, approximate=False)
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id for job in jobs]) == [True] * 60
    back = []
    while some := await claim(backend):
        assert len(some) < 30
        back += some
    assert [(job.id, len(job.event.data)) for job in back] == [(job.id, 400_000) for job in jobs]


async def test_a_purge_by_age_takes_no_more_at_a_time_than_one_by_name(backend: RedisBackend) -> None:
    await subscribe(backend)
    await die(backend, 0, 1_500)
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    assert lock is not None
    taken = [await backend.retention.purge_dead(CHANNEL, await backend.now(), 5_000, lock) for _ in range(3)]
    assert taken == [{CONSUMER: 1_000}, {CONSUMER: 500}, {}]


async def test_listing_some_records_does_not_go_through_the_others(
    backend: RedisBackend, client: redis.Redis
) -> None:
    now = await backend.now()
    for n in range(30):
        await backend.records.put(f"gbe.state.redrives.r-{n}", {}, 0, now - n * MINUTE)

    async def listing() -> int:
        found = [each.key for each in await backend.records.due("gbe.state.redrives.", 20, newest=True)]
        assert found == [f"gbe.state.redrives.r-{n}" for n in range(20)]
        return await commands(client, backend.records.due("gbe.state.redrives.", 20, newest=True))

    alone = await listing()
    tasks = (f"gbe.state.tasks.email.t-{n}" for n in range(10_000))
    await asyncio.gather(*(backend.records.put(name, {}, 0, now) for name in tasks))
    assert await listing() == alone
    assert len(await backend.records.due("gbe.state.", 100)) == 100
    assert len(await backend.records.due("gbe.state.tasks.email.t-99", 200)) == 111
