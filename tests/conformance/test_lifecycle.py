"""The lifecycle: leases that ended without an answer, and the two budgets."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Applied, Backend
from holdfast.model.decide import after_failure
from holdfast.model.job import Burial, Retry
from holdfast.model.states import State
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    abandon,
    claim_one,
    fail,
    publish,
    record,
    state,
    states,
    step,
    subscribe,
)


async def test_an_expired_lease_gives_the_attempt_back_and_counts_an_abandonment(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    await backend.advance(LEASE)
    assert await step(backend) == Applied(abandoned=1)
    kept = await record(backend, "a")
    assert (kept.state, kept.attempts, kept.abandonments) == (State.READY, 0, 1)
    assert (kept.token, kept.worker, kept.lease_until) == (job.token, None, None)
    assert "tester" in kept.errors[0]["error"], "it says whose lease it was"
    again = await claim_one(backend)
    assert (again.attempt, again.abandonments) == (1, 1)
    assert again.token > job.token


async def test_a_running_lease_is_left_alone(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await claim_one(backend)
    await backend.advance(LEASE - MINUTE)
    assert await step(backend) == Applied()
    assert await state(backend, "a") is State.LEASED


async def test_a_backlog_is_not_stuck_however_old(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await backend.advance(timedelta(days=400))
    assert await step(backend) == Applied()
    assert (await claim_one(backend)).attempt == 1


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_job_whose_workers_vanish_dies_as_a_crash_loop(backend: Backend, most: int) -> None:
    # CORRECTIONS 001.4: the poison event that kills its worker must not loop forever.
    await subscribe(backend, max_attempts=1, max_abandonments=most)
    await publish(backend, "poison")
    for lost in range(1, most):
        await claim_one(backend)
        assert await abandon(backend) == Applied(abandoned=1)
        assert (await record(backend, "poison")).abandonments == lost
    await claim_one(backend)
    assert await abandon(backend) == Applied(buried=1)
    kept = await record(backend, "poison")
    assert (kept.state, kept.reason) == (State.DEAD, "crash_loop")
    assert (kept.attempts, kept.abandonments, len(kept.errors)) == (0, most, most)


@pytest.mark.parametrize("most", [1, 2, 3])
async def test_a_job_dies_when_its_last_attempt_has_failed(backend: Backend, bus: Bus, most: int) -> None:
    # CORRECTIONS 001.3 and 002.2: counted at the lease, dead when a lease ends with attempts >= max.
    await subscribe(backend, max_attempts=most, backoff=["0s"])
    await publish(backend, "a")
    for attempt in range(1, most + 1):
        assert await state(backend, "a") is State.READY
        job = await claim_one(backend)
        assert job.attempt == attempt
        await bus.finalize(job, success=False, error=f"no {attempt}")
    kept = await record(backend, "a")
    assert (kept.state, kept.reason, kept.attempts) == (State.DEAD, "max_attempts", most)
    assert [error["error"] for error in kept.errors] == [f"no {n}" for n in range(1, most + 1)]


async def test_the_last_legitimate_attempt_is_never_cut_short(backend: Backend, bus: Bus) -> None:
    # CORRECTIONS 002.2: never while a live lease still runs.
    await subscribe(backend, max_attempts=1, max_abandonments=5)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert (await record(backend, "a")).attempts == 1
    await backend.advance(LEASE - MINUTE)
    assert await step(backend) == Applied()
    await bus.extend(job, "5m")
    await backend.advance(LEASE - MINUTE)
    assert await step(backend) == Applied()
    await bus.finalize(job, success=True)
    assert await states(backend) == {State.DONE: 1}


async def test_an_abandoned_last_attempt_was_no_attempt(backend: Backend, bus: Bus) -> None:
    # CORRECTIONS 002.2: the lease's expiry takes the attempt back, so the handler still gets its say.
    await subscribe(backend, max_attempts=1, max_abandonments=3)
    await publish(backend, "a")
    await claim_one(backend)
    assert await abandon(backend) == Applied(abandoned=1)
    job = await claim_one(backend)
    assert (job.attempt, job.abandonments) == (1, 1)
    await bus.finalize(job, success=True)
    assert await states(backend) == {State.DONE: 1}


async def test_a_budget_that_was_lowered_counts_when_the_lease_ends(backend: Backend) -> None:
    await subscribe(backend, max_attempts=5, backoff=["0s"])
    await publish(backend, "a")
    for _ in range(3):
        await fail(backend, await claim_one(backend))
    await claim_one(backend)
    await subscribe(backend, max_attempts=2)
    assert await step(backend) == Applied(), "not while the lease runs"
    assert await abandon(backend) == Applied(buried=1)
    assert (await record(backend, "a")).reason == "max_attempts"


async def test_attempts_without_a_limit_are_no_reason_to_die(backend: Backend) -> None:
    made = await subscribe(backend, max_attempts="unlimited", backoff=["0s"])
    assert made.policy.to_json()["max_attempts"] == "unlimited"
    assert (await backend.channels.consumer(CHANNEL, CONSUMER)).policy == made.policy
    await publish(backend, "a")
    chance = random.Random(7)
    for attempt in range(1, 31):
        job = await claim_one(backend)
        assert job.attempt == attempt
        decided = after_failure(job, made.policy, BOOM, terminal=False, chance=chance)
        assert isinstance(decided, Retry)
        assert await backend.leases.retry([decided]) == [True]
    await claim_one(backend)
    await backend.advance(LEASE)
    assert await step(backend) == Applied(abandoned=1), "the lifecycle reads the same budget"
    assert (await record(backend, "a")).attempts == 30
    for _ in range(2):  # the other budget stands
        await claim_one(backend)
        await abandon(backend)
    kept = await record(backend, "a")
    assert (kept.state, kept.reason) == (State.DEAD, "crash_loop")


async def test_a_limit_that_is_set_later_counts_what_was_tried_before(backend: Backend) -> None:
    await subscribe(backend, max_attempts="unlimited", backoff=["0s"])
    await publish(backend, "a")
    for _ in range(3):
        assert await fail(backend, await claim_one(backend))
    lowered = await subscribe(backend, max_attempts=3)
    job = await claim_one(backend)
    decided = after_failure(job, lowered.policy, BOOM, terminal=False, chance=random.Random(7))
    assert isinstance(decided, Burial)
