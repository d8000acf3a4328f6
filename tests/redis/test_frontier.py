"""Frontiers: what waits is the log, a lease is one record of many jobs, and exceptions are their own."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest
import redis

import holdfast
from holdfast import failpoints
from holdfast.backends.redis import RedisBackend
from holdfast.embedded import Redis
from holdfast.model.decide import when_due
from holdfast.model.event import Event
from holdfast.model.job import Job, Retry
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    abandon,
    bury,
    by_id,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    record,
    state,
    states,
    step,
    subscribe,
    until,
)

TOKENS = 512


async def fill(backend: RedisBackend, count: int, start: int = 0, priority: int = 0) -> None:
    events = [Event(n, f"e-{n}") for n in range(start, start + count)]
    await backend.log.publish(CHANNEL, events, priority=priority)


def blocks(client: redis.Redis) -> list[str]:
    return sorted(client.scan_iter("{holdfast}:block:*", count=1000))


async def test_what_waits_and_what_is_done_together_has_no_record_of_its_own(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await fill(backend, 1_300)
    before = client.dbsize()
    jobs = await claim(backend, 1_300)
    assert len({job.token for job in jobs}) == len(jobs) == 1_300
    assert blocks(client) == [f"{{holdfast}}:block:1:{base}" for base in (1024, 1536, 512)]
    assert client.dbsize() < before + 10
    assert await backend.leases.complete(jobs) == [True] * 1_300
    assert await backend.leases.complete(jobs) == [False] * 1_300
    assert client.dbsize() < before + 10
    assert await states(backend) == {State.DONE: 1_300}
    kept = await record(backend, "e-777")
    [job] = [job for job in jobs if job.event.id == "e-777"]
    assert (kept.state, kept.token, kept.attempts, kept.worker) == (State.DONE, job.token, 1, "tester")
    assert kept.ended_at is not None


async def test_the_entries_of_a_block_are_kept_whatever_their_ids(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    chance = random.Random(7)
    entries, ms = [], 0
    for _ in range(60):
        ms += chance.choice((1, 2, 999, 10**7))
        first = chance.choice((0, 0, 1, 10**13 - 2, 2**63, 2**64 - 9))
        entries += [f"{ms}-{first + n}" for n in range(chance.choice((1, 1, 2, 7)))]
    last = "18446744073709551614-5", "18446744073709551614-6"
    for entry in (*entries, *last):
        client.xadd(CHANNEL, {"data": "1"}, id=entry)
    jobs = await claim(backend, 1_000)
    assert ids(jobs) == [*entries, *last]
    some = chance.sample(jobs, 40)
    assert all(await backend.leases.complete(some))
    for job in jobs:
        kept = await backend.leases.job(CHANNEL, CONSUMER, job.id)
        assert kept is not None
        assert (kept.token, kept.state is State.DONE) == (job.token, job in some)
    assert await backend.leases.job(CHANNEL, CONSUMER, "1-99") is None
    assert all(await backend.leases.complete([job for job in jobs if job not in some]))


async def test_the_jobs_of_one_lease_go_their_own_ways(backend: RedisBackend) -> None:
    await subscribe(backend)
    await publish(backend, *"abcdefg")
    jobs = by_id(await claim(backend))
    assert await complete(backend, jobs["b"])
    await backend.advance(MINUTE)
    assert await fail(backend, jobs["c"], MINUTE)
    assert await bury(backend, jobs["d"])
    assert await backend.leases.retry([Retry(jobs["e"], None)]) == [True]
    assert await backend.leases.requeue(CHANNEL, CONSUMER, jobs["f"].id)
    assert await backend.leases.extend([jobs["g"]], timedelta(hours=1)) == [True]
    assert {name: (await state(backend, name)).value for name in "abcdefg"} == {
        "a": "leased",
        "b": "done",
        "c": "scheduled",
        "d": "dead",
        "e": "ready",
        "f": "ready",
        "g": "leased",
    }
    ended = [(await record(backend, name)).ended_at for name in "bd"]
    assert ended[0] is not None
    assert ended[1] is not None
    assert ended[1] - ended[0] >= MINUTE
    assert await states(backend) == {
        State.READY: 2,
        State.LEASED: 2,
        State.DONE: 1,
        State.DEAD: 1,
        State.SCHEDULED: 1,
    }
    await backend.advance(LEASE)
    applied = await step(backend)
    assert (applied.abandoned, applied.promoted) == (1, 1), "the lease of g goes on"
    for name in "cdef":
        assert not await complete(backend, jobs[name]), "these tokens are of the past"
    assert await complete(backend, jobs["g"])


async def test_a_token_is_good_for_its_own_job_alone(backend: RedisBackend) -> None:
    await subscribe(backend)
    await fill(backend, 6)
    jobs = await claim(backend)

    def under(job: Job, token: int) -> Job:
        return Job(job.id, job.channel, job.consumer, job.event, job.position, 1, 0, token, job.lease_until)

    forged = [under(job, other.token) for job, other in zip(jobs, [*jobs[1:], jobs[0]], strict=True)]
    forged += [under(jobs[0], token) for token in (0, 1, TOKENS - 1, jobs[-1].token + 1, 2 * TOKENS)]
    assert await backend.leases.complete(forged) == [False] * len(forged)
    assert await backend.leases.extend(forged, MINUTE) == [False] * len(forged)
    assert await backend.leases.retry([Retry(job, None) for job in forged]) == [False] * len(forged)
    assert await backend.leases.complete([jobs[0], jobs[0], *jobs]) == [True, False, False, *[True] * 5]


async def test_a_poison_job_does_not_bury_its_neighbours(backend: RedisBackend) -> None:
    await subscribe(backend, max_abandonments=3)
    await fill(backend, 20)
    assert len(await claim(backend)) == 20
    assert (await abandon(backend)).abandoned == 20
    while (await state(backend, "e-7")) is not State.DEAD:
        for job in await claim(backend):
            if job.event.id != "e-7":
                assert await complete(backend, job)
        await abandon(backend)
    assert await states(backend) == {State.DONE: 19, State.DEAD: 1}
    assert (await record(backend, "e-7")).reason == "crash_loop"


@pytest.mark.parametrize("many", [1, 9, 10, 11, 20])
async def test_some_of_a_lease_can_be_extended(backend: RedisBackend, many: int) -> None:
    await subscribe(backend)
    await fill(backend, 20)
    jobs = await claim(backend)
    assert await backend.leases.extend(jobs[:many], timedelta(hours=2)) == [True] * many
    await backend.advance(LEASE)
    assert (await step(backend)).abandoned == 20 - many
    assert await backend.leases.complete(jobs) == [True] * many + [False] * (20 - many)


async def test_members_that_end_one_by_one_are_done_when_they_were(backend: RedisBackend) -> None:
    await subscribe(backend, lease="10h")
    await fill(backend, 30)
    jobs = await claim(backend)
    order = random.Random(3).sample(jobs, 30)
    for job in order:
        assert await complete(backend, job)
        await backend.advance(MINUTE)
    ended = [(await record(backend, job.event.id)).ended_at for job in order]
    assert ended == sorted(ended, key=str)
    assert len(set(ended)) == 30
    assert await states(backend) == {State.DONE: 30}


async def test_a_claim_never_leases_more_than_it_was_asked_for(backend: RedisBackend) -> None:
    await subscribe(backend)
    await fill(backend, 10)
    await publish(backend, "high-1", "high-2", priority=5)
    await publish(backend, "low", priority=-5)
    assert await fail(backend, await claim_one(backend))  # high-1 goes to the tail of its priority
    assert ids(await claim(backend, 3)) == ["high-2", "high-1", "e-0"]
    assert (await states(backend))[State.LEASED] == 3
    assert ids(await claim(backend, 20)) == [*(f"e-{n}" for n in range(1, 10)), "low"]


async def test_what_comes_back_is_merged_with_what_waits(backend: RedisBackend) -> None:
    await subscribe(backend)
    await fill(backend, 3)
    jobs = await claim(backend, 2)
    await backend.advance(MINUTE)
    await fill(backend, 2, start=3)
    assert await fail(backend, jobs[0])
    assert await backend.leases.retry([Retry(jobs[1], None)]) == [True]
    await backend.advance(MINUTE)
    await fill(backend, 1, start=5)
    assert ids(await claim(backend)) == ["e-1", "e-2", "e-3", "e-4", "e-0", "e-5"]


async def test_a_publish_looks_at_no_consumer(backend: RedisBackend, client: redis.Redis) -> None:
    async def commands() -> int:
        client.config_resetstat()
        await publish(backend, f"e-{client.xlen(CHANNEL)}")
        return sum(each["calls"] for each in client.info("commandstats").values())

    await subscribe(backend)
    await publish(backend, "first")
    alone = await commands()
    for number in range(50):
        await subscribe(backend, f"c-{number}")
    assert await commands() == alone
    assert (await backend.lifecycle.due(1)).load == 2 + 51


async def test_counts_and_claims_cost_the_same_however_much_waits(
    backend: RedisBackend, client: redis.Redis
) -> None:
    async def commands(verb: str) -> int:
        client.config_resetstat()
        match verb:
            case "stats":
                await backend.channels.consumer_stats(CHANNEL, CONSUMER)
            case "backlogs":
                await backend.channels.backlogs(10)
            case "times":
                await backend.channels.job_times()
            case "due":
                await backend.lifecycle.due(500)
            case _:
                await claim(backend, 5)
        return sum(
            each["calls"] for name, each in client.info("commandstats").items() if "config" not in name
        )

    verbs = ("stats", "backlogs", "times", "due", "claim")
    await subscribe(backend, expires_after="1d")
    await fill(backend, 500)
    await claim(backend, 5)
    few = {verb: await commands(verb) for verb in verbs}
    for start in range(500, 20_500, 5_000):
        await fill(backend, 5_000, start)
    for verb in verbs:
        assert await commands(verb) <= few[verb] + 2, verb


async def test_a_further_consumer_takes_no_memory_for_what_waits(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    for start in range(0, 20_000, 5_000):
        await fill(backend, 5_000, start)
    before = client.info("memory")["used_memory"]
    for number in range(10):
        await subscribe(backend, f"c-{number}", start="earliest")
    assert (client.info("memory")["used_memory"] - before) / 10 / 20_000 < 1
    assert await states(backend, consumer="c-3") == {State.READY: 20_000}


async def test_what_was_taken_out_ahead_is_passed_over_and_forgotten(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await fill(backend, 10)
    assert await backend.leases.cancel(CHANNEL, "default", "e-4", None) == 1
    assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, "e-2")).id)
    assert client.zcard("{holdfast}:ahead:1") == 2
    assert await states(backend) == {State.READY: 9, State.CANCELLED: 1}
    left = [f"e-{n}" for n in (0, 1, 3, 5, 6, 7, 8, 9)]
    assert ids(await claim(backend, 20)) == [*left, "e-2"], "a requeue goes to the tail"
    assert client.zcard("{holdfast}:ahead:1") == 0
    assert await states(backend) == {State.LEASED: 9, State.CANCELLED: 1}


async def test_a_requeue_does_not_overtake_what_an_ordered_consumer_has_not_taken_up(
    backend: RedisBackend,
) -> None:
    await subscribe(backend, ordered=True)
    events = [Event(n, f"e-{n}", key="k" if n in (1_499, 2_499) else f"k-{n}") for n in range(2_500)]
    await backend.log.publish(CHANNEL, events)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, "e-2499")).id)
    seen: list[str] = []
    while jobs := await claim(backend, 700):
        seen += ids(jobs)
        assert "e-2499" not in seen
    assert len(seen) == 2_499
    assert await states(backend) == {State.LEASED: 2_499, State.READY: 1}


async def test_a_higher_priority_far_down_the_log_comes_first(backend: RedisBackend) -> None:
    await subscribe(backend)
    await fill(backend, 3_000)
    await fill(backend, 2_500, 3_000, priority=1)
    await publish(backend, "last")
    await publish(backend, "first", priority=9)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    while (await step(backend)).backfilled:
        pass
    assert ids(await claim(backend, 2)) == ["first", "e-3000"]
    await backend.advance(MINUTE)
    await step(backend)
    seen = []
    while jobs := await claim(backend, 2_000):
        seen += ids(jobs)
    assert seen == [
        *(f"e-{n}" for n in range(3_001, 5_500)),
        *(f"e-{n}" for n in range(3_000)),
        "last",
        "later",
    ]


async def test_the_first_that_waits_expires_and_the_lifecycle_finds_it(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend, expires_after="10m")
    await fill(backend, 1_200)
    await backend.advance(5 * MINUTE)
    await fill(backend, 3, start=1_200)
    assert (await step(backend)).buried == 0
    await backend.advance(5 * MINUTE)
    while (await step(backend)).buried:
        pass
    assert await states(backend) == {State.DEAD: 1_200, State.READY: 3}
    assert client.zcard("{holdfast}:ahead:1") == 0
    assert (await backend.lifecycle.due(500)).due == []
    await subscribe(backend, expires_after="1m")
    assert (await step(backend)).buried == 3, "a shorter time counts for what waits already"


async def test_everything_that_waits_is_cancelled_in_few_records(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await fill(backend, 3_000)
    [job] = await claim(backend, 1)
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 700) == 700
    assert await states(backend) == {State.LEASED: 1, State.CANCELLED: 700, State.READY: 2_299}
    cancelled = 0
    while some := await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 10_000):
        cancelled += some
    assert cancelled == 2_299
    assert len(blocks(client)) < 12
    kept = await record(backend, "e-2999")
    assert (kept.state, kept.attempts, kept.token, kept.worker) == (State.CANCELLED, 0, 0, None)
    assert not await backend.leases.requeue(CHANNEL, CONSUMER, kept.id)
    assert await complete(backend, job)
    assert (await backend.lifecycle.due(1)).load == 0


async def test_records_that_have_expired_leave_their_index(client: redis.Redis, relaxed_redis: Redis) -> None:
    backend = RedisBackend(relaxed_redis.url, history="1ms")
    await backend.open()
    await subscribe(backend)
    for n in range(30):
        await publish(backend, f"e-{n}")
        assert await complete(backend, await claim_one(backend))
        await until(lambda: asyncio.sleep(0, not blocks(client)))
    assert client.zcard("{holdfast}:blocks:1") < 5
    assert client.zcard("{holdfast}:open:1") == 0
    assert await backend.leases.find_jobs(CHANNEL, "default", "e-3") == []
    await backend.close()


async def test_leases_of_a_consumer_that_is_being_removed_are_nobodys(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend, lease="1m")
    await subscribe(backend, "other")
    await fill(backend, 700)
    jobs = await claim(backend, 600)
    await claim(backend, 5, consumer="other")
    with failpoints.active("remove.after_mark", "raise"), pytest.raises(failpoints.FailpointError):
        await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1_000)
    assert not any(await backend.leases.complete(jobs[:10]))
    await backend.advance(LEASE)
    reading = await backend.lifecycle.due(500)
    assert reading.load == 700 + 600, "of the other one, and what was in hand"
    assert len(reading.due) == 5 + 2, "phase two forgets two leases of nobody"
    removed = 0
    while not (step_done := await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1_000)).done:
        removed += step_done.jobs
    assert removed + step_done.jobs == 600
    assert client.zcard("{holdfast}:due:lease") == 1
    assert (await backend.lifecycle.due(500)).load == 700


async def test_a_store_of_an_older_version_is_refused_by_name(
    backend: RedisBackend, client: redis.Redis
) -> None:
    client.hset("{holdfast}:store", "schema", 2)
    other = backend.fork()
    with pytest.raises(holdfast.HoldfastError, match="schema 2, which an older version made"):
        await other.open()
    client.hset("{holdfast}:store", "schema", 99)
    with pytest.raises(holdfast.HoldfastError, match="schema 99, which is newer"):
        await other.open()


@pytest.mark.concurrency
async def test_many_hands_in_one_lease_lose_and_double_nothing(backend: RedisBackend) -> None:
    """Claims, completions, failures, extensions, cancels, requeues and the lifecycle, all at once."""
    await subscribe(backend, max_attempts="unlimited", max_abandonments=1_000)
    chance, done, cancelled = random.Random(11), list[str](), 0
    total = 1_500

    async def work() -> None:
        while len(done) + cancelled < total:
            jobs = await claim(backend, chance.choice((1, 3, 40, 600)))
            if not jobs:
                await backend.advance(timedelta(seconds=30))
                await step(backend)
            chance.shuffle(jobs)
            while jobs:
                some = [jobs.pop() for _ in range(min(len(jobs), chance.choice((1, 2, 30, 600))))]
                match chance.randrange(6):
                    case 0:
                        await backend.leases.retry([Retry(job, timedelta(0)) for job in some])
                    case 1:
                        await backend.leases.extend(some, LEASE)
                        jobs += some
                    case 2 if chance.random() < 0.3:
                        pass  # forgotten: the lease runs out
                    case 3 if chance.random() < 0.2:
                        await backend.leases.requeue(CHANNEL, CONSUMER, some[0].id)
                    case _:
                        accepted = await backend.leases.complete(some)
                        done.extend(job.event.id for job, yes in zip(some, accepted, strict=True) if yes)

    async def publisher() -> None:
        nonlocal cancelled
        for start in range(0, total, 50):
            await fill(backend, 50, start)
            cancelled += await backend.leases.cancel(CHANNEL, "default", f"e-{start + 17}", None)

    await asyncio.wait_for(asyncio.gather(publisher(), *(work() for _ in range(5))), 120)
    assert len(done) == len(set(done)) == total - cancelled
    assert await states(backend) == {State.DONE: len(done), State.CANCELLED: cancelled}
    assert (await backend.lifecycle.due(1)).load == 0


async def test_a_retried_job_can_come_with_a_block_that_has_its_number_as_a_token(
    backend: RedisBackend,
) -> None:
    """A job's tokens rise by one, those of blocks follow each other: the last of a block meets the next."""
    await subscribe(backend)
    await fill(backend, TOKENS)
    *_, last = await claim(backend, TOKENS)
    assert await fail(backend, last)
    await fill(backend, 3, start=TOKENS)
    jobs = await claim(backend)
    assert sorted(ids(jobs)) == [f"e-{n}" for n in range(TOKENS - 1, TOKENS + 3)]
    assert await backend.leases.complete(jobs) == [True] * 4


async def test_leases_of_a_consumer_whose_removal_was_cut_off_hide_no_others(backend: RedisBackend) -> None:
    await subscribe(backend)
    await subscribe(backend, "going")
    await fill(backend, 6)
    for _ in range(5):
        await claim(backend, 1, consumer="going")
    await claim(backend, 1)
    assert not (await backend.channels.remove_consumer(CHANNEL, "going", 1)).done
    await backend.advance(LEASE)
    for _ in range(5):
        due = (await backend.lifecycle.due(2)).due
        await backend.lifecycle.apply([when_due(each) for each in due])
    assert await states(backend) == {State.READY: 6}
    assert await backend.leases.stuck(10) == []
    assert (await record(backend, "e-0")).abandonments == 1


@pytest.mark.parametrize("how", ["cancel", "requeue"])
async def test_what_is_special_is_counted_once_when_it_is_wanted_before_its_turn(
    backend: RedisBackend, client: redis.Redis, how: str
) -> None:
    await subscribe(backend)
    await fill(backend, 1_200, priority=1)
    name = f"e-{1_199}"
    if how == "cancel":
        assert await backend.leases.cancel(CHANNEL, "default", name, None) == 1
    else:
        assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, name)).id)
    left = 1_199 if how == "cancel" else 1_200
    assert (await backend.lifecycle.due(1)).load == left
    removed = 0
    while True:
        step = await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1_000)
        removed += step.jobs
        if step.done:
            break
    assert removed == left
    assert (await backend.lifecycle.due(1)).load == 0


async def test_what_was_cancelled_before_its_turn_does_not_come_when_its_record_has_expired(
    client: redis.Redis, relaxed_redis: Redis
) -> None:
    backend = RedisBackend(relaxed_redis.url, history="1ms")
    await backend.open()
    await subscribe(backend)
    await publish(backend, "a", priority=1)
    assert await backend.leases.cancel(CHANNEL, "default", "a", None) == 1
    await until(lambda: asyncio.sleep(0, not client.keys("{holdfast}:job:*")))
    assert await claim(backend) == []
    await backend.close()


async def test_an_id_in_another_form_is_no_second_job(backend: RedisBackend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    milliseconds, _, sequence = (await record(backend, "a")).id.partition("-")
    for other in (
        f"{milliseconds}-0{sequence}",
        f"0{milliseconds}-{sequence}",
        f"{milliseconds}-{sequence}\n",
    ):
        with pytest.raises(holdfast.InvalidInput):
            await backend.leases.requeue(CHANNEL, CONSUMER, other)
        assert await backend.leases.job(CHANNEL, CONSUMER, other) is None
    assert ids(await claim(backend)) == ["a"]
