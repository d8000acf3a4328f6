"""Trimming and workers: what a worker consumer has not finished stays, in whatever state it is."""

from __future__ import annotations

import pytest
from sweeps import HOUR, Sweep, kept, locked

from holdfast.contracts import Backend
from holdfast.model.upkeep import Hold, Trim
from kit import (
    CHANNEL,
    CONSUMER,
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
    step,
    subscribe,
)


@pytest.fixture
async def trim(backend: Backend) -> Sweep:
    return Sweep(backend, await locked(backend))


async def test_every_live_state_holds_its_event(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    first = await publish(backend, "done", "leased")
    await publish(backend, "scheduled", at=await backend.now() + 48 * HOUR)
    await publish(backend, "ready")
    jobs = by_id(await claim(backend, 2))
    assert await complete(backend, jobs["done"])
    assert await trim() == Trim(1, more=False, hold=Hold(CONSUMER, first[0].position))
    assert await kept(backend) == ["leased", "scheduled", "ready"]
    assert await complete(backend, jobs["leased"])
    assert (await trim()).removed == 1
    assert await complete(backend, await claim_one(backend))
    step = await trim()
    assert (step.removed, step.hold) == (0, Hold(CONSUMER, first[1].position)), "far ahead, and still needed"
    assert await backend.leases.cancel(CHANNEL, "default", "scheduled", None) == 1
    assert await trim() == Trim(2, more=False, hold=None)


async def test_a_finished_job_behind_an_unfinished_one_frees_nothing(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    jobs = by_id(await claim(backend))
    assert await complete(backend, jobs["b"])
    assert await complete(backend, jobs["c"])
    assert (await trim()).removed == 0
    assert await complete(backend, jobs["a"])
    assert (await trim()).removed == 3


async def test_a_retry_and_an_abandoned_lease_still_hold(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await fail(backend, await claim_one(backend), 10 * MINUTE)
    assert (await trim()).removed == 0
    await backend.advance(10 * MINUTE)
    assert (await step(backend)).promoted == 1
    await claim_one(backend)
    assert (await abandon(backend)).abandoned == 1
    assert (await trim()).hold == Hold(CONSUMER, None)
    assert ids(await claim(backend)) == ["a"]


async def test_a_paused_consumer_holds_what_waits_for_it(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend)
    await backend.channels.set_paused(CHANNEL, CONSUMER, paused=True)
    await publish(backend, "a", "b")
    assert (await trim()).hold == Hold(CONSUMER, None)
    await backend.channels.set_paused(CHANNEL, CONSUMER, paused=False)
    assert ids(await claim(backend)) == ["a", "b"]


async def test_a_consumer_that_is_still_backfilling_holds_what_it_has_not_seen(
    backend: Backend, trim: Sweep
) -> None:
    names = [f"e-{n}" for n in range(50)]
    await publish(backend, *names)
    await subscribe(backend, start="earliest")
    assert (await trim()).removed == 0
    while (await step(backend)).backfilled:
        assert (await trim()).removed == 0
    jobs = await claim(backend)
    assert ids(jobs) == names
    assert all(await backend.leases.complete(jobs))
    assert await trim() == Trim(50, more=False, hold=None)


async def test_a_consumer_that_began_later_does_not_hold_what_was_before_it(
    backend: Backend, trim: Sweep
) -> None:
    await publish(backend, "before")
    await subscribe(backend)
    await publish(backend, "after")
    assert (await trim()).removed == 1
    assert await kept(backend) == ["after"]


async def test_the_slower_of_two_workers_holds(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, "quick")
    await subscribe(backend, "slow")
    receipts = await publish(backend, "a", "b")
    for job in await claim(backend, consumer="quick"):
        assert await complete(backend, job)
    assert (await trim()).hold == Hold("slow", None)
    assert await complete(backend, await claim_one(backend, consumer="slow"))
    assert await trim() == Trim(1, more=False, hold=Hold("slow", receipts[0].position))


async def test_an_ordered_consumer_holds_what_waits_in_a_lane(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, ordered=True)
    await publish(backend, "a", "b", "c", key="k")
    for name in ("a", "b", "c"):
        assert (await trim()).hold is not None
        job = await claim_one(backend)
        assert job.event.id == name
        assert await complete(backend, job)
        assert (await trim()).removed == 1


async def test_a_cancelled_and_a_discarded_job_hold_nothing(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, on_dead="discard")
    await publish(backend, "cancelled", "discarded")
    assert await backend.leases.cancel(CHANNEL, "default", "cancelled", None) == 1
    assert await bury(backend, await claim_one(backend))
    assert await trim() == Trim(2, more=False, hold=None)


async def test_what_expired_while_it_waited_holds_until_it_was_buried(backend: Backend, trim: Sweep) -> None:
    await subscribe(backend, expires_after="1h")
    await publish(backend, "a")
    await backend.advance(2 * HOUR)
    assert (await trim()).hold == Hold(CONSUMER, None)
    assert (await step(backend)).buried == 1
    assert (await trim()).hold is None
