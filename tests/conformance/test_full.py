"""A full channel, the size of a log, and what is forgotten."""

from __future__ import annotations

from datetime import datetime

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import LockLost
from holdfast.model.event import Event
from holdfast.model.states import State
from holdfast.model.upkeep import Forgotten, Lock
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim_one,
    complete,
    publish,
    read_all,
    record,
    state,
    states,
    subscribe,
)


async def lock(backend: Backend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert held is not None
    return held


async def refused(backend: Backend, *names: str) -> str:
    """What a refused publish says."""
    with pytest.raises(holdfast.Overloaded) as caught:
        await publish(backend, *names)
    return str(caught.value)


# full


@pytest.mark.parametrize("count", [1, 3, 1000])
async def test_a_full_channel_refuses_and_nothing_is_appended(backend: Backend, count: int) -> None:
    await subscribe(backend)
    await publish(backend, "before")
    await backend.retention.set_full(CHANNEL, True)
    message = await refused(backend, *(f"e-{n}" for n in range(count)))
    assert CHANNEL in message
    assert "full" in message
    assert "max_bytes" in message
    assert [entry.event.id for entry in await read_all(backend)] == ["before"]
    assert await states(backend) == {State.READY: 1}


async def test_it_accepts_again_once_it_is_no_longer_full(backend: Backend) -> None:
    await publish(backend, "a")
    await backend.retention.set_full(CHANNEL, True)
    await backend.retention.set_full(CHANNEL, True)
    await refused(backend, "b")
    await backend.retention.set_full(CHANNEL, False)
    await publish(backend, "b")
    await backend.retention.set_full(CHANNEL, False)
    await publish(backend, *(f"e-{n}" for n in range(500)))
    assert len(await read_all(backend)) == 502


async def test_other_channels_go_on(backend: Backend) -> None:
    await backend.channels.create(CHANNEL)
    await backend.retention.set_full(CHANNEL, True)
    await publish(backend, "a", channel="refunds")


async def test_another_client_is_refused_too(backend: Backend) -> None:
    other = backend.fork()
    await other.open()
    try:
        await publish(other, "a")
        await backend.retention.set_full(CHANNEL, True)
        await refused(other, "b")
        await backend.retention.set_full(CHANNEL, False)
        await publish(other, "b")
    finally:
        await other.close()


async def test_a_repeat_is_answered_even_by_a_full_channel(backend: Backend) -> None:
    # It adds nothing, and whoever repeats needs to know that the first one stands.
    [first] = await publish(backend, "a")
    await backend.retention.set_full(CHANNEL, True)
    [again] = await publish(backend, "a")
    assert (again.position, again.duplicate) == (first.position, True)
    await refused(backend, "a", "b")


async def test_work_goes_on_in_a_full_channel(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    await backend.retention.set_full(CHANNEL, True)
    assert await complete(backend, await claim_one(backend))
    assert await bury(backend, await claim_one(backend))
    assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, "b")).id)
    assert (await claim_one(backend)).event.id == "b"


async def test_a_dead_letter_goes_into_a_full_channel(backend: Backend) -> None:
    """A full target must not keep a dead job alive."""
    await backend.channels.create("graveyard")
    await subscribe(backend, dead_letter="graveyard")
    await publish(backend, "a")
    await backend.retention.set_full("graveyard", True)
    assert await bury(backend, await claim_one(backend))
    assert await state(backend, "a") is State.DEAD
    assert len(await read_all(backend, "graveyard")) == 1


async def test_fullness_and_bounds_are_apart(backend: Backend) -> None:
    await subscribe(backend, max_depth=1)
    await backend.retention.set_full(CHANNEL, True)
    assert "max_bytes" in await refused(backend, "a")
    await backend.retention.set_full(CHANNEL, False)
    await publish(backend, "a")
    assert "max_depth" in await refused(backend, "b")
    await backend.retention.set_full(CHANNEL, True)
    await subscribe(backend)  # no longer bounded
    assert "max_bytes" in await refused(backend, "b")
    await backend.retention.set_full(CHANNEL, False)
    await publish(backend, "b")


async def test_the_bus_says_so_for_one_and_for_many(bus: Bus, backend: Backend) -> None:
    await bus.publish(CHANNEL, 1, id="a")
    await backend.retention.set_full(CHANNEL, True)
    with pytest.raises(holdfast.Overloaded):
        await bus.publish(CHANNEL, 2, id="b")
    with pytest.raises(holdfast.Overloaded):
        await bus.publish_many(CHANNEL, [Event(n, f"m-{n}") for n in range(5)])


# size


async def test_the_size_is_right_within_a_factor_of_two(backend: Backend) -> None:
    for start in range(0, 600, 200):
        await backend.log.publish(CHANNEL, [Event(b"x" * 1000, f"e-{n}") for n in range(start, start + 200)])
    await publish(backend, *(f"other-{n}" for n in range(900)), channel="refunds")
    size = await backend.retention.size(CHANNEL)
    assert 300 <= size.events <= 1200
    assert 300_000 <= size.bytes <= 1_200_000


async def test_the_size_follows_what_is_trimmed(backend: Backend) -> None:
    await backend.log.publish(CHANNEL, [Event(b"x" * 1000, f"old-{n}") for n in range(400)])
    await backend.advance(MINUTE)
    before = await backend.now()
    await backend.log.publish(CHANNEL, [Event(b"x" * 1000, f"new-{n}") for n in range(100)])
    held = await lock(backend)
    while (await backend.retention.trim(CHANNEL, before, 1000, held)).more:
        continue
    size = await backend.retention.size(CHANNEL)
    assert 50 <= size.events <= 200
    assert 50_000 <= size.bytes <= 200_000


async def test_an_empty_channel_has_no_size(backend: Backend) -> None:
    await backend.channels.create(CHANNEL)
    size = await backend.retention.size(CHANNEL)
    assert (size.events, size.bytes) == (0, 0)


# forget


async def forget_all(
    backend: Backend, keys: datetime, jobs: datetime, held: Lock, limit: int = 1000
) -> Forgotten:
    """All steps together."""
    total = Forgotten(0, 0, more=True)
    while total.more:
        step = await backend.retention.forget(keys, jobs, limit, held)
        assert max(step.keys, step.jobs) <= limit
        total = Forgotten(total.keys + step.keys, total.jobs + step.jobs, step.more)
    return total


async def test_nothing_younger_is_forgotten(backend: Backend) -> None:
    early = await backend.now()
    await backend.advance(MINUTE)
    await subscribe(backend)
    [first] = await publish(backend, "a")
    assert await complete(backend, await claim_one(backend))
    assert await forget_all(backend, early, early, await lock(backend)) == Forgotten(0, 0, more=False)
    [again] = await publish(backend, "a")
    assert (again.position, again.duplicate) == (first.position, True)
    assert await state(backend, "a") is State.DONE


async def test_what_is_older_is_forgotten_where_the_store_does_not_see_to_it(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(25)))
    for _ in range(25):
        assert await complete(backend, await claim_one(backend))
    await backend.advance(MINUTE)
    now = await backend.now()
    forgotten = await forget_all(backend, now, now, await lock(backend), limit=10)
    assert forgotten.keys in (0, 25), "all of it, or none where keys expire by themselves"
    assert forgotten.jobs in (0, 25)
    if forgotten.keys:
        [again] = await publish(backend, "e-0")
        assert not again.duplicate, "after the window a repeat is a new event"
    if forgotten.jobs:
        assert State.DONE not in await states(backend)


async def test_the_dead_and_the_living_are_not_forgotten(backend: Backend) -> None:
    await subscribe(backend)
    early = await backend.now()
    await publish(backend, "dead", "leased", "ready")
    assert await bury(backend, await claim_one(backend))
    leased = await claim_one(backend)
    await backend.advance(MINUTE)
    await forget_all(backend, early, await backend.now(), await lock(backend))
    assert await states(backend) == {State.DEAD: 1, State.LEASED: 1, State.READY: 1}
    assert await state(backend, "dead") is State.DEAD
    assert await complete(backend, leased)


async def test_a_sweeper_from_the_past_forgets_nothing(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await complete(backend, await claim_one(backend))
    old = await lock(backend)
    await backend.advance(60 * MINUTE)
    await lock(backend)
    now = await backend.now()
    with pytest.raises(LockLost):
        await backend.retention.forget(now, now, 10, old)
    [again] = await publish(backend, "a")
    assert again.duplicate
    assert await state(backend, "a") is State.DONE
