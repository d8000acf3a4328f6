"""Counts of dead letters: exact after every way in and out of dead, by reason and by fingerprint."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest
from dead_helpers import bury_all, check_counts, clustered, counts, die, listed
from sweeps import locked

from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadFilter
from holdfast.model.decide import describe
from holdfast.model.job import Job, Reason
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    MINUTE,
    abandon,
    bury,
    claim,
    claim_one,
    publish,
    states,
    step,
    subscribe,
)

MAIL = "mail"


async def test_without_dead_letters_there_is_nothing_to_count(backend: Backend) -> None:
    assert await backend.deadletters.counts() == []
    assert await backend.deadletters.clusters(None, None, 10) == []
    await subscribe(backend)
    await publish(backend, "a")
    assert await backend.deadletters.counts() == []
    assert await backend.deadletters.clusters(CHANNEL, CONSUMER, 10) == []


async def test_each_way_into_dead_counts_under_its_reason(backend: Backend) -> None:
    await subscribe(backend, max_abandonments=1, expires_after="1h")
    await die(backend, "a", "b")
    await die(backend, "c", reason=Reason.MAX_ATTEMPTS)
    await publish(backend, "crashes")
    await claim_one(backend)
    await publish(backend, "waits")
    await abandon(backend)
    await backend.advance(60 * MINUTE)
    await step(backend)
    assert await counts(backend) == {
        (CHANNEL, CONSUMER, "terminal"): 2,
        (CHANNEL, CONSUMER, "max_attempts"): 1,
        (CHANNEL, CONSUMER, "crash_loop"): 1,
        (CHANNEL, CONSUMER, "expired"): 1,
    }
    assert await check_counts(backend) == 5


async def test_each_way_out_of_dead_counts_too(backend: Backend) -> None:
    await subscribe(backend)
    a, b, c, d, *_ = await die(backend, "a", "b", "c", "d", "e")
    assert await backend.leases.requeue(CHANNEL, CONSUMER, a.id)
    assert await counts(backend) == {(CHANNEL, CONSUMER, "terminal"): 4}
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [b.id]) == [True]
    assert await counts(backend) == {(CHANNEL, CONSUMER, "terminal"): 3}
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, [c.id, d.id]) == [True, True]
    assert await counts(backend) == {(CHANNEL, CONSUMER, "terminal"): 1}
    await backend.advance(MINUTE)
    assert await backend.retention.purge_dead(CHANNEL, await backend.now(), 10, await locked(backend)) == {
        CONSUMER: 1
    }
    assert await backend.deadletters.counts() == [], "a count of zero is no answer"
    assert await backend.deadletters.clusters(None, None, 10) == []


async def test_what_is_discarded_or_refused_is_not_counted(backend: Backend) -> None:
    await subscribe(backend, on_dead="discard")
    [job] = await die(backend, "a")
    assert not await bury(backend, job)
    assert await backend.deadletters.counts() == []
    assert await backend.deadletters.clusters(None, None, 10) == []


async def test_every_consumer_of_every_channel_has_its_own_count(backend: Backend) -> None:
    for channel in (CHANNEL, "stock"):
        for consumer in (CONSUMER, MAIL):
            await subscribe(backend, consumer, channel=channel)
    await die(backend, "a", "b")
    await publish(backend, "x", channel="stock")
    await bury_all(backend, await claim(backend, consumer=MAIL, channel="stock"))
    assert await counts(backend) == {(CHANNEL, CONSUMER, "terminal"): 2, ("stock", MAIL, "terminal"): 1}
    await check_counts(backend)


async def test_clusters_are_errors_that_differ_only_in_numbers(backend: Backend) -> None:
    await subscribe(backend)
    for number in range(3):
        await die(backend, f"n-{number}", error=KeyError(f"order {number} is missing"))
    await die(backend, "other", error=ValueError("bad"), reason=Reason.MAX_ATTEMPTS)
    missing = describe(KeyError("order 99 is missing")).fingerprint
    bad = describe(ValueError("bad")).fingerprint
    large, small = await backend.deadletters.clusters(None, None, 10)
    assert (large.channel, large.consumer, large.fingerprint, large.count) == (CHANNEL, CONSUMER, missing, 3)
    assert (small.fingerprint, small.count, small.sample.record.event_id) == (bad, 1, "other")
    assert small.sample.record.errors[-1]["kind"] == "ValueError"
    assert [each.fingerprint for each in await backend.deadletters.clusters(None, None, 1)] == [missing]


async def test_a_clusters_sample_is_its_latest_death(backend: Backend) -> None:
    await subscribe(backend)
    jobs = []
    for name in ("a", "b", "c"):
        jobs += await die(backend, name)
        await backend.advance(MINUTE)
    for dead in ("c", "b", "a"):
        [cluster] = await backend.deadletters.clusters(CHANNEL, CONSUMER, 10)
        assert cluster.sample.record.event_id == dead
        assert await backend.deadletters.purge(CHANNEL, CONSUMER, [jobs.pop().id]) == [True]
    assert await backend.deadletters.clusters(CHANNEL, CONSUMER, 10) == []


async def test_clusters_are_asked_for_by_channel_and_consumer(backend: Backend) -> None:
    for channel in (CHANNEL, "stock"):
        for consumer in (CONSUMER, MAIL):
            await subscribe(backend, consumer, channel=channel)
            await publish(backend, f"{channel}-{consumer}", channel=channel)
            await bury_all(backend, await claim(backend, consumer=consumer, channel=channel))
    boom = BOOM.fingerprint
    assert len(await clustered(backend)) == 4
    assert set(await clustered(backend, CHANNEL)) == {(CHANNEL, CONSUMER, boom), (CHANNEL, MAIL, boom)}
    assert set(await clustered(backend, "stock", MAIL)) == {("stock", MAIL, boom)}
    assert await clustered(backend, "nowhere") == {}
    assert await clustered(backend, CHANNEL, "nobody") == {}


async def test_a_second_death_counts_under_its_own_fingerprint(backend: Backend) -> None:
    await subscribe(backend)
    [job] = await die(backend, "a", error="first")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id]) == [True]
    await bury_all(backend, await claim(backend), "second", Reason.MAX_ATTEMPTS)
    assert await counts(backend) == {(CHANNEL, CONSUMER, "max_attempts"): 1}
    assert await clustered(backend) == {(CHANNEL, CONSUMER, describe("second").fingerprint): 1}


@pytest.mark.concurrency
async def test_many_at_once_leave_exact_counts(backend: Backend) -> None:
    """Several tasks bury, revive and purge the same jobs; whoever wins, the counts are right."""
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(80)))

    async def work(number: int) -> None:
        chance = random.Random(number)
        for _ in range(6):
            jobs = await claim(backend, 10)
            errors = [chance.choice(["one", "two"]) for _ in jobs]
            await asyncio.gather(*(bury_all(backend, [j], e) for j, e in zip(jobs, errors, strict=True)))
            found = await backend.deadletters.page(DeadFilter(CHANNEL, CONSUMER), None, 20)
            dead = [letter.record.id for letter in found.letters]
            await backend.deadletters.revive(CHANNEL, CONSUMER, chance.sample(dead, len(dead) // 2))
            await backend.deadletters.purge(CHANNEL, CONSUMER, chance.sample(dead, len(dead) // 8))

    await asyncio.gather(*(work(number) for number in range(5)))
    dead = await check_counts(backend)
    found = await states(backend)
    assert found.get(State.DEAD, 0) == dead
    assert sum(found.values()) == 80, "I1: nothing vanished"


async def test_an_id_is_revived_or_purged_by_one_of_many(backend: Backend) -> None:
    await subscribe(backend)
    jobs = await die(backend, *(f"e-{n}" for n in range(30)))
    ids = [job.id for job in jobs]
    calls = [
        backend.deadletters.revive(CHANNEL, CONSUMER, ids),
        backend.deadletters.purge(CHANNEL, CONSUMER, ids),
    ]
    calls += [
        backend.deadletters.revive(CHANNEL, CONSUMER, ids[::-1]),
        backend.deadletters.purge(CHANNEL, CONSUMER, ids[::-1]),
    ]
    calls += [backend.deadletters.revive(CHANNEL, CONSUMER, [each]) for each in ids[:10]]
    answers = await asyncio.gather(*calls)
    assert sum(sum(answer) for answer in answers) == 30
    assert await check_counts(backend) == 0
    assert sum((await states(backend)).values()) == 30


class Walk:
    """A random history of one store, with two consumers whose jobs live, die, rise and go."""

    def __init__(self, backend: Backend, lock: Lock, chance: random.Random) -> None:
        self.backend, self.lock, self.chance = backend, lock, chance
        self.published = 0
        self.held: list[Job] = []

    def consumer(self) -> str:
        return self.chance.choice([CONSUMER, MAIL])

    async def dead(self, consumer: str) -> list[str]:
        letters = [each.record for each in await listed(self.backend) if each.record.consumer == consumer]
        return [each.id for each in self.chance.sample(letters, min(3, len(letters)))]

    async def publish(self) -> None:
        fresh = range(self.published, self.published + self.chance.randint(1, 4))
        await publish(self.backend, *(f"e-{n}" for n in fresh))
        self.published = fresh.stop

    async def claim(self) -> None:
        self.held += await claim(self.backend, self.chance.randint(1, 4), consumer=self.consumer())

    async def complete(self) -> None:
        await self.backend.leases.complete(self.taken())

    async def bury(self) -> None:
        for job in self.taken():
            await bury(self.backend, job, describe(self.chance.choice(["one 1", "two 2", "three 3"])))

    def taken(self) -> list[Job]:
        """Some leases, of which some may be lost."""
        self.chance.shuffle(self.held)
        taken, self.held = self.held[:2], self.held[2:]
        return taken

    async def expire(self) -> None:
        await self.backend.advance(timedelta(minutes=self.chance.choice([6, 35])))
        await step(self.backend)

    async def revive(self) -> None:
        consumer = self.consumer()
        data = self.chance.choice([None, b"patched"])
        await self.backend.deadletters.revive(CHANNEL, consumer, await self.dead(consumer), data)

    async def requeue(self) -> None:
        consumer = self.consumer()
        for job_id in await self.dead(consumer):
            assert await self.backend.leases.requeue(CHANNEL, consumer, job_id)

    async def purge(self) -> None:
        consumer = self.consumer()
        await self.backend.deadletters.purge(CHANNEL, consumer, await self.dead(consumer))

    async def purge_dead(self) -> None:
        before = await self.backend.now() - 10 * MINUTE
        await self.backend.retention.purge_dead(CHANNEL, before, 2, self.lock)

    async def fold(self) -> None:
        await self.backend.deadletters.fold(timedelta(0), 0, self.lock)

    async def check(self) -> None:
        await check_counts(self.backend)
        for consumer in (CONSUMER, MAIL):
            found = await states(self.backend, consumer=consumer)
            assert sum(found.values()) == self.published, "I1: nothing vanished"


WEIGHTS = {"claim": 2, "bury": 3}
MOVES = ("publish", "claim", "complete", "bury", "expire", "revive", "requeue", "purge", "purge_dead", "fold")


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 10))])
async def test_any_history_leaves_exact_counts(backend: Backend, seed: int) -> None:
    """I3 at every quiet point."""
    chance = random.Random(seed)
    for consumer in (CONSUMER, MAIL):
        await subscribe(backend, consumer, lease="5m", max_abandonments=2, expires_after="30m")
    lock = await backend.locks.acquire("walk", "tester", timedelta(days=1000))
    assert lock is not None
    walk = Walk(backend, lock, chance)
    for move in chance.choices(MOVES, [WEIGHTS.get(move, 1) for move in MOVES], k=60):
        await getattr(walk, move)()
        await walk.check()
    assert await backend.deadletters.recount(False, lock) == []
