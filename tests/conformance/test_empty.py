"""Emptying a consumer: every job that waits is cancelled, in steps, and nothing else changes."""

from __future__ import annotations

import pytest

from holdfast.contracts import Backend
from holdfast.model.errors import NotFound, Overloaded
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
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
    step,
    subscribe,
)


async def empty(backend: Backend, limit: int = 100) -> int:
    """All steps; returns how many jobs they cancelled."""
    done = 0
    while cancelled := await backend.leases.cancel_waiting(CHANNEL, CONSUMER, limit):
        assert cancelled <= limit
        done += cancelled
    return done


async def test_everything_that_waits_is_cancelled(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "retried", "again")
    retried, again = await claim(backend)
    assert await fail(backend, retried, 60 * MINUTE)
    assert await fail(backend, again)
    await publish(backend, "plain-1", "plain-2")
    await publish(backend, "high", priority=5)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    assert await empty(backend) == 6
    assert await states(backend) == {State.CANCELLED: 6}
    assert await claim(backend) == []
    for name in ("retried", "again", "plain-1", "plain-2", "high", "later"):
        kept = await record(backend, name)
        assert (kept.event_id, kept.state) == (name, State.CANCELLED)
        assert kept.ended_at is not None
        assert await backend.leases.job(CHANNEL, CONSUMER, kept.id) == kept
    assert (await record(backend, "high")).priority == 5
    assert (await record(backend, "retried")).attempts == 1
    await backend.advance(120 * MINUTE)
    await step(backend)
    assert await claim(backend) == []


async def test_a_step_cancels_no_more_than_its_limit(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(7)))
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 0) == 0
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 3) == 3
    assert await states(backend) == {State.CANCELLED: 3, State.READY: 4}
    [job, *_] = jobs = await claim(backend)
    assert ids(jobs) == ["e-3", "e-4", "e-5", "e-6"]
    assert await fail(backend, job)
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 0) == 0
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 3) == 1
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 3) == 0


async def test_what_is_leased_or_ended_stays(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "leased", "done", "dead", "waits")
    leased, done, dead = await claim(backend, 3)
    assert await complete(backend, done)
    assert await bury(backend, dead)
    assert await empty(backend) == 1
    assert await states(backend) == {State.LEASED: 1, State.DONE: 1, State.DEAD: 1, State.CANCELLED: 1}
    assert await complete(backend, leased)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, dead.id)
    assert ids(await claim(backend)) == ["dead"]


async def test_only_one_consumer_is_emptied_and_new_events_are_delivered(backend: Backend) -> None:
    await subscribe(backend)
    await subscribe(backend, "mail")
    await publish(backend, "a", "b")
    assert await empty(backend) == 2
    [again] = await publish(backend, "a")
    assert again.duplicate
    await publish(backend, "new")
    assert ids(await claim(backend)) == ["new"]
    assert ids(await claim(backend, consumer="mail")) == ["a", "b", "new"]


async def test_held_jobs_of_a_key_are_cancelled_too(backend: Backend) -> None:
    await subscribe(backend, ordered=True)
    for key in ("k-1", "k-2"):
        await publish(backend, *(f"{key}-{n}" for n in range(3)), key=key)
    head = await claim_one(backend)
    assert head.event.id == "k-1-0"
    assert await empty(backend, 2) == 5
    await publish(backend, "k-1-new", key="k-1")
    await publish(backend, "k-2-new", key="k-2")
    assert ids(await claim(backend)) == ["k-2-new"]
    assert await complete(backend, head)
    assert ids(await claim(backend)) == ["k-1-new"]


async def test_the_head_of_a_key_lets_the_next_one_go(backend: Backend) -> None:
    await subscribe(backend, ordered=True)
    await publish(backend, "first", "second", key="k")
    assert await fail(backend, await claim_one(backend), MINUTE)
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 1) == 1
    assert await state(backend, "first") is State.CANCELLED
    assert ids(await claim(backend)) == ["second"]


async def test_a_bounded_consumer_has_room_again(backend: Backend) -> None:
    await subscribe(backend, max_depth=5)
    await publish(backend, *(f"e-{n}" for n in range(5)))
    job = await claim_one(backend)
    assert await fail(backend, job, MINUTE)
    held = await claim_one(backend)
    with pytest.raises(Overloaded):
        await publish(backend, "over")
    assert await empty(backend) == 4
    for n in range(4):
        await publish(backend, f"new-{n}")
    with pytest.raises(Overloaded):
        await publish(backend, "over")
    assert await complete(backend, held)


async def test_what_expired_and_is_not_buried_yet_is_cancelled_or_buried(backend: Backend) -> None:
    await subscribe(backend, expires_after="10m")
    await publish(backend, "old-1", "old-2")
    await backend.advance(11 * MINUTE)
    await publish(backend, "young")
    assert await empty(backend) == 3
    await step(backend)
    assert await claim(backend) == []
    assert State.READY not in await states(backend)


@pytest.mark.parametrize("start", ["earliest", "time"])
async def test_a_start_in_the_past_is_emptied_before_it_has_caught_up(backend: Backend, start: str) -> None:
    await publish(backend, "early")
    await backend.advance(60 * MINUTE)
    since = await backend.now()
    before = [f"b-{n}" for n in range(1200)]  # more than a page of it
    await publish(backend, *before)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    await subscribe(backend, start="earliest" if start == "earliest" else since)
    await publish(backend, "after")
    assert await empty(backend, 500) == 1202 + (start == "earliest")
    await backend.advance(5 * MINUTE)
    for _ in range(4):
        await step(backend)
    assert await claim(backend) == []
    await publish(backend, "new")
    assert ids(await claim(backend)) == ["new"]


async def test_a_revived_job_that_waits_is_cancelled(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await bury(backend, job)
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [job.id], b'"other"') == [True]
    assert await empty(backend) == 1
    assert await states(backend) == {State.CANCELLED: 1}
    assert await backend.deadletters.counts() == []


async def test_a_paused_consumer_can_be_emptied(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    await backend.channels.set_paused(CHANNEL, CONSUMER, True)
    assert await empty(backend) == 1


async def test_cancelled_jobs_hold_no_trim_back(backend: Backend) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(n, f"e-{n}") for n in range(10)])
    lock = await backend.locks.acquire("sweeper", "tester", 10 * MINUTE)
    assert (await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 100, lock)).removed == 0
    assert await empty(backend) == 10
    assert (await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 100, lock)).removed == 10
    assert await state(backend, "e-3") is State.CANCELLED
    await publish(backend, "new")
    assert ids(await claim(backend)) == ["new"]


async def test_nobody_is_emptied_where_there_is_no_such_consumer(backend: Backend) -> None:
    with pytest.raises(NotFound):
        await backend.leases.cancel_waiting("nowhere", CONSUMER, 10)
    await subscribe(backend)
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 10) == 0
    with pytest.raises(NotFound):
        await backend.leases.cancel_waiting(CHANNEL, "nobody", 10)
    while not (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 10)).done:
        pass
    with pytest.raises(NotFound):
        await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 10)
