"""Operators: cancel, requeue, and finding jobs."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    record,
    state,
    states,
    subscribe,
)


async def test_cancel_ends_what_waits(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "ready")
    await publish(backend, "scheduled", at=await backend.now() + MINUTE)
    assert [await bus.cancel(CHANNEL, name) for name in ("ready", "scheduled")] == [1, 1]
    kept = await record(backend, "ready")
    assert (kept.state, kept.attempts) == (State.CANCELLED, 0)
    assert kept.ended_at is not None
    assert await states(backend) == {State.CANCELLED: 2}
    assert await claim(backend) == []


async def test_cancel_leaves_what_is_leased_or_ended(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "leased", "done", "dead")
    leased, done, dead = await claim(backend)
    assert await complete(backend, done)
    assert await bury(backend, dead)
    assert [await bus.cancel(CHANNEL, name) for name in ("leased", "done", "dead", "unknown")] == [0] * 4
    assert await bus.cancel("nowhere", "leased") == 0
    assert await complete(backend, leased)


async def test_cancel_is_for_all_consumers_or_for_one(bus: Bus, backend: Backend) -> None:
    for consumer in ("billing", "mail", "stock"):
        await subscribe(backend, consumer)
    await publish(backend, "a", "b")
    assert await bus.cancel(CHANNEL, "a", consumer="mail") == 1
    assert await bus.cancel(CHANNEL, "a") == 2
    assert await bus.cancel(CHANNEL, "b") == 3


async def test_cancel_goes_by_source_too(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(1, "a"), Event(1, "a", source="shop")])
    assert await bus.cancel(CHANNEL, "a", source="shop") == 1
    assert await state(backend, "a") is State.READY


async def test_a_cancelled_event_stays_published(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await backend.leases.cancel(CHANNEL, "default", "a", None)
    [again] = await publish(backend, "a")
    assert again.duplicate
    assert await claim(backend) == []


async def test_a_requeue_of_live_work_takes_the_lease_away(bus: Bus, backend: Backend) -> None:
    # CORRECTIONS 001.5: without a higher token, both the old holder and the next one could finish it.
    await subscribe(backend, max_attempts=2)
    await publish(backend, "a", "b")
    stale = await claim_one(backend)
    assert await bus.requeue(CHANNEL, CONSUMER, stale.id)
    kept = await record(backend, "a")
    assert (kept.state, kept.attempts, kept.abandonments) == (State.READY, 0, 0)
    assert kept.token > stale.token
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(stale, success=True)
    other, again = await claim(backend)
    assert (other.event.id, again.event.id) == ("b", "a"), "at the tail"
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(stale, success=True)
    await bus.finalize(again, success=True)
    assert await state(backend, "a") is State.DONE


async def test_a_requeue_brings_a_retry_forward_with_fresh_budgets(bus: Bus, backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await fail(backend, job, 60 * MINUTE)
    assert await bus.requeue(CHANNEL, CONSUMER, job.id)
    assert (await claim_one(backend)).attempt == 1


async def test_a_requeued_live_job_has_its_whole_time_to_wait_again(backend: Backend) -> None:
    await subscribe(backend, expires_after="10m", lease="1h")
    await publish(backend, "a")
    job = await claim_one(backend)
    await backend.advance(30 * MINUTE)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    assert ids(await claim(backend)) == ["a"]


@pytest.mark.parametrize("end", ["done", "cancelled"])
async def test_what_has_ended_well_is_not_requeued(bus: Bus, backend: Backend, end: str) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job_id = (await record(backend, "a")).id
    if end == "done":
        assert await complete(backend, await claim_one(backend))
    else:
        assert await bus.cancel(CHANNEL, "a") == 1
    assert not await bus.requeue(CHANNEL, CONSUMER, job_id)
    assert await states(backend) == {State(end): 1}


async def test_a_job_is_requeued_only_for_its_own_consumer(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    await subscribe(backend, "mail")
    assert not await backend.leases.requeue(CHANNEL, "mail", job.id)
    assert not await backend.leases.requeue(CHANNEL, "nobody", job.id)
    assert not await backend.leases.requeue("nowhere", CONSUMER, job.id)
    assert await complete(backend, job)


async def test_stuck_is_what_is_leased_past_its_deadline_oldest_first(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "first")
    await claim_one(backend)
    await backend.advance(MINUTE)
    await publish(backend, "second", "backlog")
    await claim_one(backend)
    assert await backend.leases.stuck(10) == []
    await backend.advance(LEASE)
    stuck = await backend.leases.stuck(10)
    assert [(job.event_id, job.state, job.worker) for job in stuck] == [
        ("first", State.LEASED, "tester"),
        ("second", State.LEASED, "tester"),
    ]
    assert [job.event_id for job in await backend.leases.stuck(1)] == ["first"]
    assert stuck[0] == await record(backend, "first")


async def test_find_jobs_shows_every_consumers_job_wherever_it_is(bus: Bus, backend: Backend) -> None:
    for consumer in ("a-ready", "b-leased", "c-done", "d-dead", "e-cancelled"):
        await subscribe(backend, consumer)
    [receipt] = await publish(backend, "a", priority=3)
    await claim_one(backend, consumer="b-leased")
    await complete(backend, await claim_one(backend, consumer="c-done"))
    await bury(backend, await claim_one(backend, consumer="d-dead"))
    await bus.cancel(CHANNEL, "a", consumer="e-cancelled")
    found = await bus.find_jobs(CHANNEL, "a")
    assert [(job.consumer, job.state.value) for job in found] == [
        (name, name.split("-")[1]) for name in ("a-ready", "b-leased", "c-done", "d-dead", "e-cancelled")
    ]
    for job in found:
        assert (job.channel, job.event_id, job.source, job.position, job.priority) == (
            CHANNEL,
            "a",
            "default",
            receipt.position,
            3,
        )
        assert (job.ended_at is None) == (job.state in (State.READY, State.LEASED))
    assert await bus.find_jobs(CHANNEL, "unknown") == []
    assert await bus.find_jobs("nowhere", "a") == []
