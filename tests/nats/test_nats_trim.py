"""Trimming on NATS: a record first and a purge after it, outcomes and copies, and keys that are forgotten."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.client import Client

from holdfast import failpoints
from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import stream
from holdfast.failpoints import FailpointError
from holdfast.model.errors import DataLost
from holdfast.model.event import MAX_DATA, Event
from holdfast.model.states import State
from holdfast.model.upkeep import Forgotten, Lock, Trim
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    state,
    states,
    subscribe,
)


@pytest.fixture
async def lock(backend: NatsBackend) -> Lock:
    held = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert held is not None
    return held


async def trim(backend: NatsBackend, lock: Lock, limit: int = 1000) -> Trim:
    await backend.advance(MINUTE)
    return await backend.retention.trim(CHANNEL, await backend.now(), limit, lock)


async def subjects(client: Client, filter_: str) -> list[str]:
    info = await client.jetstream().stream_info("HOLDFAST", subjects_filter=filter_)
    return sorted(info.state.subjects or {})


@pytest.mark.parametrize("place", ["trim.after_record", "trim.mid_purge"])
async def test_a_step_that_died_is_finished_by_the_next(
    backend: NatsBackend, client: Client, lock: Lock, place: str
) -> None:
    receipts = await publish(backend, "a", "b")
    await backend.log.publish(CHANNEL, [Event(b"x" * MAX_DATA, "large")])
    with failpoints.active(place, "raise"), pytest.raises(FailpointError):
        await trim(backend, lock)
    extent = await backend.log.extent(CHANNEL)
    assert (extent.trimmed is None, extent.first, extent.last) == (False, None, None)
    assert (await backend.retention.size(CHANNEL)).events == 0
    with pytest.raises(DataLost):
        await anext(aiter(backend.log.pages(CHANNEL, receipts[0].position, receipts[1].position, 10)))
    cursor = await backend.cursors.attach(CHANNEL, "archiver")
    assert cursor.position == extent.trimmed, "nobody begins below it"
    await subscribe(backend, start="earliest")
    assert await claim(backend) == []
    assert await trim(backend, lock) == Trim(0, more=False, hold=None)
    assert await subjects(client, CHANNEL) == []
    assert await subjects(client, "HF.P.>") == []
    await publish(backend, "c")
    assert ids(await claim(backend)) == ["c"]


async def test_the_fate_of_a_large_publish_stays_as_long_as_its_keys(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    names = [f"e-{n}" for n in range(1100)]
    await publish(backend, *names)
    assert (await trim(backend, lock, 2000)).removed == 1100
    assert len(await subjects(client, "HF.F.>")) == 1
    assert all(receipt.duplicate for receipt in await publish(backend, *names))
    now = await backend.now()
    forgotten = await backend.retention.forget(now, now, 5000, lock)
    assert (forgotten.keys, forgotten.jobs, forgotten.more) == (1100, 0, False)
    assert not any(receipt.duplicate for receipt in await publish(backend, *names[:10]))
    assert (await trim(backend, lock)).removed == 10
    assert await subjects(client, "HF.F.>") == [], "the next trim takes it away"


async def test_the_fate_of_a_large_publish_stays_as_long_as_its_events(
    backend: NatsBackend, client: Client, lock: Lock
) -> None:
    names = [f"e-{n}" for n in range(1100)]
    await publish(backend, *names)
    await backend.advance(MINUTE)
    now = await backend.now()
    assert (await backend.retention.forget(now, now, 5000, lock)).keys == 1100
    other = backend.fork()
    await other.open()
    assert len(await other.log.read(CHANNEL, None, 2000)) == 1100, "they are still known to be committed"
    await other.close()
    await publish(backend, "later")
    assert (await trim(backend, lock, 2000)).removed == 1101
    assert await subjects(client, "HF.F.>") == []


async def test_a_dead_letters_copy_goes_with_it(backend: NatsBackend, client: Client, lock: Lock) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"x" * MAX_DATA, "large"), Event(1, "small")])
    for job in await claim(backend):
        assert await bury(backend, job)
    assert (await trim(backend, lock)).removed == 2
    assert len(await subjects(client, "HF.B.>")) == 2
    for name in ("small", "large"):
        [dead] = await backend.leases.find_jobs(CHANNEL, "default", name)
        assert await backend.leases.requeue(CHANNEL, CONSUMER, dead.id)
    first, second = sorted(await claim(backend), key=lambda job: len(job.event.data))
    assert (first.event.data, second.event.data) == (b"1", b"x" * MAX_DATA)
    assert await complete(backend, first)
    assert await bury(backend, second)
    await backend.advance(MINUTE)
    assert await backend.retention.purge_dead(CHANNEL, await backend.now(), 10, lock) == {CONSUMER: 1}
    left = await backend._store.connection.last(["HF.B.>", "HF.D.>"])
    assert not any(message.data for message in left), "marks, for a second"


async def test_a_dead_letter_is_found_when_its_key_is_forgotten(backend: NatsBackend, lock: Lock) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    await trim(backend, lock)
    now = await backend.now()
    assert (await backend.retention.forget(now, now, 1000, lock)).keys == 1
    [dead] = await backend.leases.find_jobs(CHANNEL, "default", "a")
    assert dead.state is State.DEAD
    assert await backend.leases.requeue(CHANNEL, CONSUMER, dead.id)
    assert ids(await claim(backend)) == ["a"]
    [again] = await publish(backend, "a")
    assert not again.duplicate, "another event, after its window"
    assert await state(backend, "a") is State.READY


async def test_forgetting_goes_on_where_it_was(backend: NatsBackend, lock: Lock) -> None:
    await publish(backend, *(f"e-{n}" for n in range(30)))
    await backend.advance(MINUTE)
    now = await backend.now()
    steps = []
    while (step := await backend.retention.forget(now, now, 25, lock)).more:
        steps.append(step.keys)
    assert (sum(steps) + step.keys, max(steps) <= 25) == (30, True)
    mark = await backend._store.connection.last(["HF.G"])
    assert await backend.retention.forget(now, now, 25, lock) == Forgotten(0, 0, more=False)
    assert await backend._store.connection.last(["HF.G"]) == mark, "nothing to walk, nothing to write"


async def test_forgetting_never_goes_ahead_of_the_log(backend: NatsBackend, lock: Lock) -> None:
    await publish(backend, "a")
    later = await backend.now() + 1000 * MINUTE
    while (await backend.retention.forget(later, later, 1000, lock)).keys:
        continue
    await publish(backend, "b")
    [again] = await publish(backend, "b")
    assert again.duplicate
    assert (await backend.retention.forget(later, later, 1000, lock)).keys == 1


async def test_what_is_gone_already_is_removed_again_in_peace(backend: NatsBackend, client: Client) -> None:
    """The server says differently of a message before the first one and of one in the middle."""
    await publish(backend, "a")
    connection = backend._store.connection
    state = (await client.jetstream().stream_info("HOLDFAST")).state
    for seq in (state.first_seq, state.first_seq, state.last_seq - 1, state.last_seq - 1):
        await stream.delete(connection, seq)


@pytest.mark.concurrency
async def test_two_trims_at_once_both_return(backend: NatsBackend, lock: Lock) -> None:
    """One looks for its end in what the other removes."""
    await publish(backend, *(str(n) for n in range(40)))
    await backend.advance(MINUTE)
    before = await backend.now()
    other = backend.fork()
    await other.open()
    steps = [each.retention.trim(CHANNEL, before, 2, lock) for _ in range(5) for each in (backend, other)]
    try:
        removed = [step.removed for step in await asyncio.gather(*steps)]
    finally:
        await other.close()
    assert sum(removed) == 20


async def test_what_left_before_its_turn_and_was_trimmed_is_not_counted(
    backend: NatsBackend, lock: Lock
) -> None:
    """The frontier still lists it."""
    await subscribe(backend)
    await publish(backend, *"abcd")
    for name in "ac":
        assert await backend.leases.cancel(CHANNEL, "default", name, None) == 1
    assert (await trim(backend, lock)).removed == 1
    assert await states(backend) == {State.READY: 2, State.CANCELLED: 2}
    assert ids(await claim(backend)) == ["b", "d"]
    assert await states(backend) == {State.LEASED: 2, State.CANCELLED: 2}
