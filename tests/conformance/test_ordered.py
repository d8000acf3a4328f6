"""Ordered consumers: one event of a key after the other, and no key waits for another one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.job import Job, Retry
from holdfast.model.states import State
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
    state,
    states,
    step,
    subscribe,
)


@pytest.fixture(autouse=True)
async def _ordered(backend: Backend) -> None:
    await subscribe(backend, ordered=True, expires_after="1d")


async def end(backend: Backend, how: str, job: Job) -> None:
    """Bring a leased job to its end."""
    match how:
        case "done":
            assert await complete(backend, job)
        case "dead":
            assert await bury(backend, job)
        case "cancelled":
            assert await backend.leases.retry([Retry(job, MINUTE)]) == [True]
            assert await backend.leases.cancel(CHANNEL, "default", job.event.id, None) == 1
        case "expired":
            assert await backend.leases.retry([Retry(job, timedelta(days=2))]) == [True]
            await backend.advance(timedelta(days=1))
            assert (await step(backend)).buried >= 1


async def test_only_the_first_event_of_a_key_is_handed_out(backend: Backend) -> None:
    await publish(backend, "k1", "k2", "k3", key="k")
    await publish(backend, "l1", "l2", key="l")
    assert ids(await claim(backend)) == ["k1", "l1"]
    assert await claim(backend) == []


@pytest.mark.parametrize("how", ["done", "dead", "cancelled"])
async def test_the_next_event_of_a_key_comes_when_the_first_has_ended(backend: Backend, how: str) -> None:
    await publish(backend, "k1", "k2", "k3", key="k")
    for name in ("k1", "k2", "k3"):
        job = await claim_one(backend)
        assert job.event.id == name
        assert await claim(backend) == []
        await end(backend, how, job)
    assert await states(backend) == {State(how): 3}


async def test_an_expired_head_does_not_block_what_came_later(backend: Backend) -> None:
    await publish(backend, "k1", key="k")
    job = await claim_one(backend)
    await backend.advance(timedelta(hours=12))
    await publish(backend, "k2", key="k")
    assert await backend.leases.retry([Retry(job, timedelta(days=2))]) == [True]
    assert await claim(backend) == []
    await backend.advance(timedelta(hours=12))
    assert (await step(backend)).buried == 1
    assert ids(await claim(backend)) == ["k2"]


async def test_a_retry_holds_back_its_own_key_only(backend: Backend) -> None:
    await publish(backend, "k1", "k2", key="k")
    await publish(backend, "l1", "l2", key="l")
    jobs = by_id(await claim(backend))
    assert await fail(backend, jobs["k1"], 10 * MINUTE)
    assert await complete(backend, jobs["l1"])
    assert ids(await claim(backend)) == ["l2"]
    await backend.advance(10 * MINUTE)
    await step(backend)
    assert "k1" in ids(await claim(backend))
    assert await state(backend, "k2") is State.READY


async def test_a_retried_head_goes_behind_other_keys_but_before_its_own(backend: Backend) -> None:
    await publish(backend, "k1", "k2", key="k")
    await publish(backend, "l1", key="l")
    assert await fail(backend, await claim_one(backend))
    assert ids(await claim(backend)) == ["l1", "k1"]


async def test_an_abandoned_head_still_holds_back_its_key(backend: Backend) -> None:
    await publish(backend, "k1", "k2", key="k")
    await claim(backend)
    assert (await abandon(backend)).abandoned == 1
    assert ids(await claim(backend)) == ["k1"]


async def test_a_priority_does_not_overtake_within_a_key(backend: Backend) -> None:
    await publish(backend, "first", key="k")
    await publish(backend, "urgent", key="k", priority=100)
    await publish(backend, "other", key="l", priority=50)
    assert ids(await claim(backend)) == ["other", "first"]


async def test_a_scheduled_event_holds_back_the_later_ones_of_its_key(backend: Backend) -> None:
    await publish(backend, "first", key="k", at=await backend.now() + 10 * MINUTE)
    await publish(backend, "second", key="k")
    assert await claim(backend) == []
    await backend.advance(10 * MINUTE)
    await step(backend)
    assert await complete(backend, await claim_one(backend))
    assert ids(await claim(backend)) == ["second"]


async def test_events_without_a_key_are_free(backend: Backend) -> None:
    await publish(backend, "a", "b", "c")
    await publish(backend, "k1", "k2", key="k")
    assert sorted(ids(await claim(backend))) == ["a", "b", "c", "k1"]


@pytest.mark.parametrize("count", [3, 300])
async def test_an_empty_key_is_a_key_in_a_batch_of_any_size(backend: Backend, count: int) -> None:
    await publish(backend, *(f"e-{n}" for n in range(count)), key="")
    assert ids(await claim(backend)) == ["e-0"]


async def test_a_cancelled_event_in_the_middle_is_skipped(backend: Backend) -> None:
    await publish(backend, "k1", "k2", "k3", key="k")
    head = await claim_one(backend)
    await claim(backend)  # the others have now been found waiting
    assert await backend.leases.cancel(CHANNEL, "default", "k2", None) == 1
    assert await claim(backend) == []
    assert await complete(backend, head)
    assert ids(await claim(backend)) == ["k3"]


async def test_a_long_lane_behind_a_blocked_head_does_not_starve_other_keys(backend: Backend) -> None:
    await publish(backend, *(f"k-{n}" for n in range(3000)), key="k")
    head = await claim_one(backend)
    await publish(backend, "l1", key="l")
    await publish(backend, "free")
    assert ids(await claim(backend, 2)) == ["l1", "free"]
    assert await complete(backend, head)
    assert ids(await claim(backend, 2)) == ["k-1"]


async def test_many_keys_fill_a_batch_from_their_heads(backend: Backend) -> None:
    events = [Event(turn, f"{key}-{turn}", key=f"key-{key}") for turn in range(20) for key in range(40)]
    await backend.log.publish(CHANNEL, events)
    seen: list[str] = []
    while jobs := await claim(backend, 25):
        assert len({job.event.key for job in jobs}) == len(jobs) <= 25
        seen += ids(jobs)
        assert all(await backend.leases.complete(jobs))
    assert len(seen) == 800
    for key in range(40):
        mine = [name for name in seen if name.startswith(f"{key}-")]
        assert mine == [f"{key}-{turn}" for turn in range(20)]


async def test_consumers_keep_their_own_order(backend: Backend) -> None:
    await subscribe(backend, "mail", ordered=True)
    await publish(backend, "k1", "k2", key="k")
    assert await complete(backend, await claim_one(backend))
    assert ids(await claim(backend)) == ["k2"]
    assert ids(await claim(backend, consumer="mail")) == ["k1"]


async def test_a_requeued_live_job_keeps_its_turn(backend: Backend) -> None:
    await publish(backend, "k1", "k2", key="k")
    head = await claim_one(backend)
    await claim(backend)
    waiting = (await backend.leases.find_jobs(CHANNEL, "default", "k2"))[0]
    assert await backend.leases.requeue(CHANNEL, CONSUMER, waiting.id)
    assert await claim(backend) == []
    assert await complete(backend, head)
    assert ids(await claim(backend)) == ["k2"]


async def test_an_event_that_rises_from_the_dead_is_first_of_its_key_again(backend: Backend) -> None:
    await publish(backend, "k1", "k2", "k3", key="k")
    dead = await claim_one(backend)
    assert await bury(backend, dead)
    running = await claim_one(backend)
    assert running.event.id == "k2"
    assert await backend.leases.requeue(CHANNEL, CONSUMER, dead.id)
    assert await complete(backend, running)
    for name in ("k1", "k3"):
        job = await claim_one(backend)
        assert (job.event.id, await claim(backend)) == (name, [])
        assert await complete(backend, job)


async def test_older_events_come_before_newer_ones_of_their_key(backend: Backend) -> None:
    await publish(backend, *(f"old-{n}" for n in range(700)), key="k", channel="past")
    await subscribe(backend, channel="past", start="earliest", ordered=True)
    await publish(backend, "new", key="k", channel="past")
    heads = await claim(backend, channel="past")  # nothing where older ones are still to come
    while (await step(backend)).backfilled:
        pass
    assert ids(heads + await claim(backend, channel="past")) == ["old-0"]
