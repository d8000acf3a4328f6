"""Expiry: it applies while a job waits and when a lease ends, never while one runs."""

from __future__ import annotations

from holdfast.bus.client import Bus
from holdfast.contracts import Applied, Backend
from holdfast.model.states import State
from kit import (
    MINUTE,
    abandon,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    record,
    step,
    subscribe,
)


async def test_what_expires_while_it_waits_dies(backend: Backend) -> None:
    # CORRECTIONS 002.3: expiry applies while waiting, from the time at which the job could first run.
    await subscribe(backend, expires_after="10m")
    await publish(backend, "ready")
    await publish(backend, "scheduled", at=await backend.now() + 5 * MINUTE)
    await backend.advance(10 * MINUTE)
    assert await claim(backend) == [], (
        "an expired job is not handed out, even before the lifecycle has seen it"
    )
    assert await step(backend) == Applied(buried=1, promoted=1)
    kept = await record(backend, "ready")
    assert (kept.state, kept.reason, kept.attempts, len(kept.errors)) == (State.DEAD, "expired", 0, 1)
    assert ids(await claim(backend)) == ["scheduled"]


async def test_a_lease_outlives_the_expiry_of_its_job(backend: Backend) -> None:
    # CORRECTIONS 002.3
    await subscribe(backend, expires_after="10m", lease="1h")
    await publish(backend, "a")
    job = await claim_one(backend)
    await backend.advance(30 * MINUTE)
    assert await step(backend) == Applied()
    assert await complete(backend, job)


async def test_expiry_is_judged_when_a_lease_ends_without_an_answer(backend: Backend) -> None:
    # CORRECTIONS 002.3: after a lease ends, both rules are checked.
    await subscribe(backend, expires_after="10m", lease="1h")
    await publish(backend, "a")
    await claim_one(backend)
    assert await abandon(backend, 60 * MINUTE) == Applied(buried=1)
    kept = await record(backend, "a")
    assert (kept.state, kept.reason, kept.attempts, kept.abandonments) == (State.DEAD, "expired", 0, 1)


async def test_expiry_is_judged_after_a_failed_attempt_too(backend: Backend, bus: Bus) -> None:
    # CORRECTIONS 002.3
    await subscribe(backend, expires_after="10m", lease="1h", backoff=["0s"])
    await publish(backend, "a")
    job = await claim_one(backend)
    await backend.advance(30 * MINUTE)
    await bus.finalize(job, success=False, error="no")
    assert await claim(backend) == []
    assert await step(backend) == Applied(buried=1)
    kept = await record(backend, "a")
    assert (kept.reason, kept.errors[0]["error"]) == ("expired", "no")
