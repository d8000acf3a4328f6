"""Settlement: how a lease ends, or goes on."""

from __future__ import annotations

from datetime import timedelta

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.job import Job
from holdfast.model.states import State
from kit import (
    LEASE,
    MINUTE,
    abandon,
    claim,
    claim_one,
    publish,
    record,
    step,
    subscribe,
)


@pytest.fixture
async def job(backend: Backend) -> Job:
    """A leased job."""
    await subscribe(backend, backoff=["1m"], max_attempts=3)
    await publish(backend, "a")
    return await claim_one(backend)


async def test_complete_ends_the_job(bus: Bus, backend: Backend, job: Job) -> None:
    await bus.finalize(job, success=True)
    kept = await record(backend, "a")
    assert (kept.state, kept.attempts, kept.token) == (State.DONE, 1, job.token)
    assert kept.ended_at is not None
    assert kept.ended_at <= await backend.now()
    assert kept.errors == []


async def test_a_failure_is_retried_after_its_backoff_with_its_error_kept(
    bus: Bus, backend: Backend, job: Job
) -> None:
    # CORRECTIONS 001.3: an ordinary handler error is retried by a policy, with a budget.
    await bus.finalize(job, success=False, error=ValueError("card declined"))
    kept = await record(backend, "a")
    assert (kept.state, kept.attempts, kept.abandonments) == (State.SCHEDULED, 1, 0)
    assert kept.due_at is not None
    assert abs(kept.due_at - await backend.now() - MINUTE) < timedelta(seconds=30)
    [error] = kept.errors
    assert (error["error"], error["kind"], error["attempt"]) == ("card declined", "ValueError", 1)
    assert error["fingerprint"]
    assert await claim(backend) == []
    await backend.advance(MINUTE)
    assert (await step(backend)).promoted == 1
    assert (await claim_one(backend)).attempt == 2


async def test_a_terminal_error_buries_at_once(bus: Bus, backend: Backend, job: Job) -> None:
    await bus.finalize(job, success=False, error=holdfast.Terminal("bad input"))
    kept = await record(backend, "a")
    assert (kept.state, kept.reason, kept.attempts) == (State.DEAD, "terminal", 1)


async def test_a_transient_error_is_retried(bus: Bus, backend: Backend, job: Job) -> None:
    await bus.finalize(job, success=False, error=holdfast.Transient("later"))
    assert (await record(backend, "a")).state is State.SCHEDULED


@pytest.mark.parametrize(("verb", "waits"), [("release", State.READY), ("snooze", State.SCHEDULED)])
async def test_release_and_snooze_spend_no_budget(
    bus: Bus, backend: Backend, job: Job, verb: str, waits: State
) -> None:
    for _ in range(5):
        await (bus.release(job) if verb == "release" else bus.snooze(job, "1h"))
        kept = await record(backend, "a")
        assert (kept.state, kept.attempts, kept.abandonments, kept.errors) == (waits, 0, 0, [])
        await backend.advance(timedelta(hours=1))
        await step(backend)
        job = await claim_one(backend)
        assert job.attempt == 1


async def test_a_snooze_waits_for_its_delay(bus: Bus, backend: Backend, job: Job) -> None:
    await bus.snooze(job, "10m")
    await backend.advance(9 * MINUTE)
    await step(backend)
    assert await claim(backend) == []
    await backend.advance(MINUTE)
    await step(backend)
    assert (await claim_one(backend)).event.id == "a"


async def test_extend_moves_the_one_deadline_there_is(bus: Bus, backend: Backend, job: Job) -> None:
    # CORRECTIONS 001.1: one lease deadline, and heartbeats move it.
    for _ in range(4):
        await backend.advance(LEASE - MINUTE)
        await bus.extend(job, "5m")
        kept = await record(backend, "a")
        assert kept.lease_until is not None
        assert abs(kept.lease_until - await backend.now() - LEASE) < timedelta(seconds=30)
        assert (await step(backend)).total == 0
    assert (kept.token, kept.attempts) == (job.token, 1), "a heartbeat is no claim"
    await bus.finalize(job, success=True)


async def test_an_extended_lease_ends_at_its_new_deadline(bus: Bus, backend: Backend, job: Job) -> None:
    await bus.extend(job, "1m")
    assert (await abandon(backend, MINUTE)).abandoned == 1
