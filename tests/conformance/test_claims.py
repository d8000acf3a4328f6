"""Claims: who gets which job, in which order, and that nobody gets it twice."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.job import Retry
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    abandon,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    record,
    states,
    step,
    subscribe,
)


async def test_a_claim_is_a_lease_with_a_token_a_deadline_and_an_attempt(backend: Backend) -> None:
    await subscribe(backend, lease="7m")
    await publish(backend, "a")
    before = await backend.now()
    [job] = await backend.leases.claim(CHANNEL, CONSUMER, 10, "worker-1")
    after = await backend.now()
    assert (job.attempt, job.abandonments) == (1, 0)
    assert before + 7 * MINUTE <= job.lease_until <= after + 7 * MINUTE
    kept = await record(backend, "a")
    assert (kept.state, kept.worker, kept.token) == (State.LEASED, "worker-1", job.token)
    assert (kept.id, kept.lease_until, kept.attempts) == (job.id, job.lease_until, 1)


async def test_the_default_lease_is_five_minutes(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert abs(job.lease_until - await backend.now() - LEASE) < MINUTE


async def test_a_claim_takes_at_most_its_limit_and_nothing_twice(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(10)))
    first, second, third = [await claim(backend, 4) for _ in range(3)]
    assert [len(batch) for batch in (first, second, third)] == [4, 4, 2]
    assert len({job.id for job in (*first, *second, *third)}) == 10
    assert await claim(backend) == []


async def test_jobs_come_in_the_order_of_publication(backend: Backend) -> None:
    await subscribe(backend)
    names = [f"e-{n:02}" for n in range(30)]
    for name in names[:10]:
        await publish(backend, name)
    await publish(backend, *names[10:])
    assert ids(await claim(backend)) == names


async def test_a_higher_priority_comes_first_then_the_earlier_due_time(backend: Backend) -> None:
    await subscribe(backend)
    start = await backend.now()
    for name, priority, minutes in (("p0-b", 0, 20), ("p0-a", 0, 10), ("p9-b", 9, 20), ("p9-a", 9, 10)):
        await publish(backend, name, priority=priority, at=start + minutes * MINUTE)
    await publish(backend, "low", priority=-5)
    await backend.advance(30 * MINUTE)
    await step(backend)
    await publish(backend, "p0-c")
    assert ids(await claim(backend, 4)) == ["p9-a", "p9-b", "p0-a", "p0-b"]
    assert ids(await claim(backend, 4)) == ["p0-c", "low"]


async def test_a_retry_goes_to_the_tail(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    assert await fail(backend, await claim_one(backend))
    assert ids(await claim(backend)) == ["b", "c", "a"]


async def test_an_abandoned_job_goes_to_the_tail(backend: Backend) -> None:
    # CORRECTIONS 002.1: put back where it was, an expired item would block the head of the queue.
    await subscribe(backend)
    await publish(backend, "poison", "b", "c")
    assert (await claim_one(backend)).event.id == "poison"
    await abandon(backend)
    assert ids(await claim(backend)) == ["b", "c", "poison"]


async def test_a_released_job_keeps_its_place(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    assert await backend.leases.retry([Retry(await claim_one(backend), None)]) == [True]
    assert ids(await claim(backend)) == ["a", "b", "c"]


async def test_each_claim_raises_the_token(backend: Backend) -> None:
    await subscribe(backend, max_attempts=9)
    await publish(backend, "a")
    tokens = []
    for _ in range(4):
        job = await claim_one(backend)
        tokens.append(job.token)
        await fail(backend, job)
    assert tokens == sorted(set(tokens))


@pytest.mark.concurrency
async def test_concurrent_claims_share_the_jobs_out(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(400)))

    async def worker(name: str) -> list[str]:
        mine: list[str] = []
        while jobs := await backend.leases.claim(CHANNEL, CONSUMER, 7, name):
            assert await backend.leases.complete(jobs) == [True] * len(jobs)
            mine += ids(jobs)
        return mine

    taken = await asyncio.gather(*(worker(f"w{n}") for n in range(6)))
    assert sorted(name for mine in taken for name in mine) == sorted(f"e-{n}" for n in range(400))
    assert await states(backend) == {State.DONE: 400}


@pytest.mark.concurrency
async def test_a_publish_amid_claims_is_claimed_as_well(backend: Backend) -> None:
    await subscribe(backend)
    done: set[str] = set()

    async def producer() -> None:
        for n in range(60):
            await publish(backend, f"e-{n}")

    async def worker() -> None:
        while len(done) < 60:
            jobs = await claim(backend, 3)
            await backend.leases.complete(jobs)
            done.update(ids(jobs))
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await asyncio.gather(producer(), worker(), worker())
    assert await states(backend) == {State.DONE: 60}


async def test_poll_answers_an_empty_list_when_there_is_nothing(bus: Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    assert await bus.poll(CHANNEL, CONSUMER, limit=10) == []


async def test_an_empty_poll_keeps_time(bus: Bus, backend: Backend) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    await backend.advance(MINUTE)
    assert ids(await bus.poll(CHANNEL, CONSUMER, limit=10)) == ["later"]
    await backend.advance(LEASE)
    [again] = await bus.poll(CHANNEL, CONSUMER, limit=10)
    assert (again.event.id, again.abandonments) == ("later", 1)


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_poll_for_less_than_one_job_is_refused(bus: Bus, limit: int) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    with pytest.raises(holdfast.InvalidInput, match=str(limit)):
        await bus.poll(CHANNEL, CONSUMER, limit=limit)


async def test_channels_and_consumers_do_not_see_each_other(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, channel="refunds")
    await backend.log.publish("refunds", [Event(1, "r")])
    assert await claim(backend) == []
    job = await claim_one(backend, channel="refunds")
    assert await complete(backend, job)
