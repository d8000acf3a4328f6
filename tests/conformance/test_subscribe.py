"""Subscribe: fan-out, where a consumer starts, and that no publish in flight is missed."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend, Start
from holdfast.model.backoff import Steps
from holdfast.model.errors import InvalidPolicy
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    state,
    states,
    step,
    subscribe,
    until,
)


async def drained(bus: Bus, consumer: str) -> list[str]:
    """Poll and complete until nothing comes any more."""
    seen: list[str] = []
    while jobs := await bus.poll(CHANNEL, consumer, limit=100):
        await bus.finalize_many(jobs, success=True)
        seen += ids(jobs)
    return seen


async def test_every_consumer_has_its_own_job(backend: Backend) -> None:
    for consumer in ("billing", "mail"):
        await subscribe(backend, consumer)
    await publish(backend, "a")
    assert await complete(backend, await claim_one(backend, consumer="billing"))
    assert await state(backend, "a", consumer="billing") is State.DONE
    assert await state(backend, "a", consumer="mail") is State.READY


async def test_latest_starts_after_what_is_there(backend: Backend) -> None:
    await publish(backend, "before")
    await subscribe(backend, start="latest")
    await publish(backend, "after")
    assert ids(await claim(backend)) == ["after"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_earliest_gets_everything_once(backend: Backend, bus: Bus, ordered: bool) -> None:
    before = [f"b-{n}" for n in range(1200)]  # more than two steps of the lifecycle
    await publish(backend, *before)
    await subscribe(backend, start="earliest", ordered=ordered)
    await publish(backend, "after")
    while (await step(backend)).backfilled:
        pass
    seen = await drained(bus, CONSUMER)
    assert sorted(seen) == sorted([*before, "after"])


async def test_earliest_on_an_empty_store_gets_the_first_event_once(backend: Backend) -> None:
    await subscribe(backend, start="earliest")
    await publish(backend, "first")
    assert await complete(backend, await claim_one(backend))
    await step(backend)
    assert await states(backend) == {State.DONE: 1}
    assert await claim(backend) == []


async def test_empty_polls_alone_bring_the_past(bus: Bus, backend: Backend) -> None:
    await publish(backend, "a", "b")
    await bus.subscribe(CHANNEL, CONSUMER, start="earliest")
    assert sorted(await drained(bus, CONSUMER)) == ["a", "b"]


async def test_a_time_starts_at_that_time(backend: Backend) -> None:
    await publish(backend, "old")
    await backend.advance(60 * MINUTE)
    since = await backend.now()
    await publish(backend, "young")
    await subscribe(backend, start=since)
    await step(backend)
    assert ids(await claim(backend)) == ["young"]


async def test_older_events_keep_their_schedule_and_priority(backend: Backend) -> None:
    await publish(backend, "low")
    await publish(backend, "high", priority=5)
    await publish(backend, "later", at=await backend.now() + 10 * MINUTE)
    await subscribe(backend, start="earliest")
    await step(backend)
    assert ids(await claim(backend)) == ["high", "low"]
    assert await state(backend, "later") is State.SCHEDULED


async def test_subscribing_again_changes_the_policy_and_keeps_the_jobs(backend: Backend) -> None:
    first = await subscribe(backend, max_attempts=2)
    await publish(backend, "a")
    second = await subscribe(backend, max_attempts=9, backoff=["1s", "10s"], lease="7m", start="earliest")
    assert (first.policy.max_attempts, second.policy.max_attempts) == (2, 9)
    assert second.policy.backoff == Steps((timedelta(seconds=1), timedelta(seconds=10)))
    assert await backend.channels.consumer(CHANNEL, CONSUMER) == second
    assert second.created_at == first.created_at
    assert await states(backend) == {State.READY: 1}
    job = await claim_one(backend)
    assert job.lease_until - await backend.now() > 6 * MINUTE


async def test_order_is_chosen_once(backend: Backend) -> None:
    await subscribe(backend, ordered=False)
    with pytest.raises(InvalidPolicy, match=CONSUMER):
        await subscribe(backend, ordered=True)
    assert not (await backend.channels.consumer(CHANNEL, CONSUMER)).policy.ordered


@pytest.mark.concurrency
@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_a_subscribe_amid_publishes_misses_no_event(backend: Backend, bus: Bus, start: Start) -> None:
    acked: list[str] = []
    subscribed = asyncio.Event()
    after: list[str] = []

    async def publisher(number: int) -> None:
        for turn in range(200):
            name = f"p{number}-{turn}"
            late = subscribed.is_set()
            await publish(backend, name)
            acked.append(name)
            if late:
                after.append(name)
            if subscribed.is_set() and turn >= 30:
                return

    publishers = [asyncio.create_task(publisher(number)) for number in range(6)]
    await until(lambda: asyncio.sleep(0, len(acked) >= 20))
    before = list(acked)
    await subscribe(backend, start=start)
    subscribed.set()
    await asyncio.gather(*publishers)
    assert after, "some events were published after the subscribe"

    while (await step(backend)).backfilled:
        pass
    seen = await drained(bus, CONSUMER)
    assert len(seen) == len(set(seen)), "none came twice"
    if start == "earliest":
        assert set(seen) == set(acked)
    else:
        assert set(after) <= set(seen) <= set(acked) - set(before)


@pytest.mark.concurrency
async def test_concurrent_subscribes_make_one_consumer(backend: Backend) -> None:
    await asyncio.gather(*(subscribe(backend, max_attempts=n) for n in range(1, 9)))
    assert [c.name for c in await backend.channels.consumers(CHANNEL)] == [CONSUMER]
    await publish(backend, "a")
    assert await states(backend) == {State.READY: 1}


@pytest.mark.parametrize("start", [datetime(2024, 1, 1), "middle", 7])  # noqa: DTZ001 - that is the point
async def test_a_start_that_is_none_is_refused(bus: Bus, start: Start) -> None:
    with pytest.raises(holdfast.InvalidInput, match=str(start)[:10]):
        await bus.subscribe(CHANNEL, CONSUMER, start=start)
