"""The lifecycle's two phases: a bounded read that writes nothing, then writes that check again."""

from __future__ import annotations

import pytest

from holdfast.contracts import Applied, Backend
from holdfast.model.decide import Action, when_due
from holdfast.model.job import Job, Retry
from holdfast.model.states import State
from holdfast.upkeep.lifecycle import Health, LifecycleSteps
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    claim,
    claim_one,
    complete,
    publish,
    record,
    states,
    subscribe,
)


async def phase_one(backend: Backend) -> list[Action]:
    """What the lifecycle would ask for now."""
    return [when_due(due) for due in (await backend.lifecycle.due(100)).due]


MEANWHILE = ["completed", "extended", "leased again", "requeued", "released"]


@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("most", [1, 3], ids=["bury", "abandon"])
async def test_phase_two_refuses_a_lease_that_changed_since_phase_one(
    backend: Backend, meanwhile: str, most: int
) -> None:
    # CORRECTIONS 002.4: between the phases the item may have been completed, extended or leased again.
    await subscribe(backend, max_abandonments=most)
    await publish(backend, "a")
    job = await claim_one(backend)
    await backend.advance(LEASE)
    actions = await phase_one(backend)
    assert len(actions) == 1
    await change(backend, meanwhile, job)
    before = await record(backend, "a")
    assert await backend.lifecycle.apply(actions) == Applied(refused=1)
    assert await record(backend, "a") == before


async def change(backend: Backend, meanwhile: str, job: Job) -> None:
    match meanwhile:
        case "completed":
            assert await complete(backend, job)
        case "extended":
            assert await backend.leases.extend([job], LEASE) == [True]
        case "leased again":
            assert await backend.leases.retry([Retry(job, None)]) == [True]
            await claim_one(backend)
            await backend.advance(
                LEASE
            )  # the new lease is overdue as well, and still not the one that was read
        case "requeued":
            assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
        case "released":
            assert await backend.leases.retry([Retry(job, None)]) == [True]


async def test_phase_two_refuses_an_expiry_and_a_schedule_that_changed(backend: Backend) -> None:
    # CORRECTIONS 002.4
    await subscribe(backend, expires_after="10m")
    await publish(backend, "expires")
    await publish(backend, "scheduled", at=await backend.now() + 10 * MINUTE)
    await backend.advance(10 * MINUTE)
    actions = await phase_one(backend)
    assert len(actions) == 2
    assert await backend.leases.cancel(CHANNEL, "default", "expires", None) == 1
    assert await backend.leases.cancel(CHANNEL, "default", "scheduled", None) == 1
    assert await backend.lifecycle.apply(actions) == Applied(refused=2)
    assert await states(backend) == {State.CANCELLED: 2}


async def test_phase_two_refuses_a_schedule_that_was_put_off(backend: Backend) -> None:
    # CORRECTIONS 002.4
    await subscribe(backend)
    await publish(backend, "a", at=await backend.now() + MINUTE)
    await backend.advance(MINUTE)
    actions = await phase_one(backend)
    assert await backend.lifecycle.apply(actions) == Applied(promoted=1)
    assert await backend.leases.retry([Retry(await claim_one(backend), 60 * MINUTE)]) == [True]
    assert await backend.lifecycle.apply(actions) == Applied(refused=1), "it is scheduled again, for later"
    assert await claim(backend) == []


async def test_the_same_decisions_twice_change_nothing_twice(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    await claim(backend, 1)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    await backend.advance(LEASE)
    actions = await phase_one(backend)
    assert await backend.lifecycle.apply(actions) == Applied(abandoned=1, promoted=1)
    assert await backend.lifecycle.apply(actions) == Applied(refused=2)


async def test_phase_one_writes_nothing_and_is_bounded(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(20)))
    await claim(backend)
    await backend.advance(LEASE)
    reading = await backend.lifecycle.due(5)
    assert (len(reading.due), reading.full) == (5, True)
    assert await states(backend) == {State.LEASED: 20}
    assert not (await backend.lifecycle.due(100)).full


async def test_bounded_steps_reach_everything(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(20)))
    await claim(backend)
    await backend.advance(LEASE)
    lifecycle = LifecycleSteps(backend, Health(), limit=7)
    assert [(await lifecycle.run_once()).abandoned for _ in range(4)] == [7, 7, 6, 0]
    assert await states(backend) == {State.READY: 20}
