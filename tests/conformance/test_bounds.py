"""Bounded consumers: `max_depth` counts what is scheduled, ready and leased."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.states import LIVE
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    abandon,
    bury,
    claim,
    claim_one,
    complete,
    fail,
    publish,
    read_all,
    states,
    step,
    subscribe,
)


async def full(backend: Backend) -> bool:
    """Whether the next publish is refused; one that is not is taken back."""
    try:
        await publish(backend, "probe")
    except holdfast.Overloaded:
        return True
    raise AssertionError("it had room")


async def live(backend: Backend) -> int:
    return sum(count for state, count in (await states(backend)).items() if state in LIVE)


async def test_a_full_consumer_refuses_and_nothing_is_appended(backend: Backend) -> None:
    await subscribe(backend, max_depth=2)
    await publish(backend, "a")
    await publish(backend, "b")
    with pytest.raises(holdfast.Overloaded) as caught:
        await publish(backend, "c")
    assert all(word in str(caught.value) for word in (CONSUMER, CHANNEL, "2"))
    assert [entry.event.id for entry in await read_all(backend)] == ["a", "b"]
    assert await live(backend) == 2


async def test_what_is_scheduled_and_leased_counts(backend: Backend) -> None:
    await subscribe(backend, max_depth=2)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    await publish(backend, "now")
    await claim_one(backend)
    assert await full(backend)


@pytest.mark.parametrize("how", ["complete", "bury", "cancel", "expire", "crash"])
async def test_whatever_ends_makes_room(backend: Backend, how: str) -> None:
    await subscribe(backend, max_depth=1, max_abandonments=1, expires_after="5m")
    await publish(backend, "a")
    assert await full(backend)
    match how:
        case "complete":
            assert await complete(backend, await claim_one(backend))
        case "bury":
            assert await bury(backend, await claim_one(backend))
        case "cancel":
            assert await backend.leases.cancel(CHANNEL, "default", "a", None) == 1
        case "expire":
            assert (await abandon(backend)).buried == 1
        case "crash":
            await claim_one(backend)
            assert (await abandon(backend)).buried == 1
    assert await live(backend) == 0
    await publish(backend, "b")
    assert await full(backend)


async def test_what_goes_on_makes_no_room(backend: Backend) -> None:
    await subscribe(backend, max_depth=1)
    await publish(backend, "a")
    assert await fail(backend, await claim_one(backend), MINUTE)
    assert await full(backend)
    await backend.advance(MINUTE)
    await step(backend)
    await claim_one(backend)
    await abandon(backend)
    assert await full(backend)


async def test_a_requeued_job_takes_room_again(backend: Backend) -> None:
    await subscribe(backend, max_depth=1)
    await publish(backend, "a")
    job = await claim_one(backend)
    assert await bury(backend, job)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    assert await full(backend)


@pytest.mark.parametrize("size", [10, 300])
async def test_one_batch_at_the_most_goes_over_the_bound(backend: Backend, size: int) -> None:
    await subscribe(backend, max_depth=size * 2 + 1)
    taken = 0

    async def publisher(number: int) -> None:
        nonlocal taken
        for turn in range(3):
            try:
                await backend.log.publish(CHANNEL, [Event(0, f"{number}-{turn}-{n}") for n in range(size)])
                taken += size
            except holdfast.Overloaded:
                return

    await asyncio.gather(*(publisher(number) for number in range(8)))
    assert taken == await live(backend) == size * 3
    assert len(await read_all(backend)) == taken


async def test_the_fullest_consumer_of_a_channel_decides(backend: Backend) -> None:
    await subscribe(backend, "roomy", max_depth=100)
    await subscribe(backend, "tight", max_depth=1)
    await subscribe(backend, "free")
    await publish(backend, "a")
    with pytest.raises(holdfast.Overloaded, match="tight"):
        await publish(backend, "b")
    assert await live_of(backend, "roomy") == await live_of(backend, "free") == 1


async def live_of(backend: Backend, consumer: str) -> int:
    return sum((await states(backend, consumer=consumer)).values())


async def test_other_channels_are_not_bounded(backend: Backend) -> None:
    await subscribe(backend, max_depth=1)
    await publish(backend, "a")
    await publish(backend, "b", "c", channel="refunds")
    assert len(await read_all(backend, "refunds")) == 2


async def test_a_bound_can_be_set_changed_and_lifted_later(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    await subscribe(backend, max_depth=3)
    assert await full(backend)
    await subscribe(backend, max_depth=4)
    await publish(backend, "d")
    assert await full(backend)
    await subscribe(backend)
    await publish(backend, "e", "f")
    await subscribe(backend, max_depth=7)
    assert not (await publish(backend, "g"))[0].duplicate
    assert await full(backend)


@pytest.mark.parametrize("size", [1, 300])
async def test_a_repeat_is_answered_by_a_bounded_consumer(backend: Backend, size: int) -> None:
    await subscribe(backend, max_depth=1000)
    names = [f"e-{n}" for n in range(size)]
    first = await publish(backend, *names)
    again = await publish(backend, *names)
    assert [(r.position, r.duplicate) for r in again] == [(r.position, True) for r in first]
    assert await live(backend) == size
    for job in await claim(backend, 1000):
        assert await complete(backend, job)
    await subscribe(backend, max_depth=1)
    await publish(backend, "next")  # the repeat was not counted


async def test_a_repeat_is_answered_while_the_consumer_is_full(backend: Backend) -> None:
    # A publisher whose answer was lost asks again; that its own event filled the consumer is no refusal.
    await subscribe(backend, max_depth=1)
    [first] = await publish(backend, "a")
    [again] = await publish(backend, "a")
    assert (again.position, again.duplicate) == (first.position, True)


async def test_the_past_is_delivered_to_a_bounded_consumer_and_counts(backend: Backend) -> None:
    await publish(backend, "a", "b", "c")
    await subscribe(backend, start="earliest", max_depth=2)
    while (await step(backend)).backfilled:
        pass
    assert await live(backend) == 3, "events that exist are not refused"
    assert await full(backend)
    for job in await claim(backend):
        assert await complete(backend, job)
    await publish(backend, "d")
    await publish(backend, "e")
    assert await full(backend)


async def test_what_is_cancelled_before_its_turn_makes_room(backend: Backend) -> None:
    await subscribe(backend, max_depth=1)
    await publish(backend, "a", priority=5)
    assert await backend.leases.cancel(CHANNEL, "default", "a", None) == 1
    await publish(backend, "b")
    assert await full(backend)
