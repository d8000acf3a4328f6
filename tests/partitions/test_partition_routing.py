"""Which store takes an event, and how polls and finalizes find their way."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest
from spread import id_of, key_of, logged, state_of, store

import holdfast
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, until


async def test_an_event_with_a_key_goes_to_the_store_of_its_key(bus: holdfast.Bus) -> None:
    for index in (0, 1):
        for number in range(10):
            key = key_of(index, number)
            await bus.publish(CHANNEL, {}, key=key, id=f"{key}/first")
            await bus.publish(CHANNEL, {}, key=key, id=f"{key}/second")
        wanted = [f"{key_of(index, number)}/{name}" for number in range(10) for name in ("first", "second")]
        assert await logged(bus, index) == wanted


async def test_an_event_with_an_id_meets_its_first_publication_again(
    bus: holdfast.Bus, urls: list[str]
) -> None:
    receipts = [await bus.publish(CHANNEL, {}, id=id_of(index)) for index in (0, 1)]
    async with holdfast.connect(urls) as other:
        for index in (0, 1):
            again = await other.publish(CHANNEL, {}, id=id_of(index))
            assert (again.position, again.duplicate) == (receipts[index].position, True)
            with pytest.raises(holdfast.IdConflict):
                await other.publish(CHANNEL, {"other": "content"}, id=id_of(index))
            assert await logged(other, index) == [id_of(index)]


async def test_an_event_with_neither_goes_to_the_least_loaded_store(bus: holdfast.Bus) -> None:
    await bus.create_channel(CHANNEL)
    loads = [partition.health for partition in bus.partitions.all]
    for light in (0, 1):
        loads[light].load, loads[1 - light].load = 0, 1000
        for _ in range(5):
            await bus.publish(CHANNEL, {})
        assert [len(await logged(bus, index)) for index in (0, 1)] == [5, 5 * light]


async def test_what_was_just_published_counts_as_load(bus: holdfast.Bus) -> None:
    for partition in bus.partitions.all:
        partition.health.load = 0
    for _ in range(20):
        await bus.publish(CHANNEL, {})
    assert [len(await logged(bus, index)) for index in (0, 1)] == [10, 10]


async def test_a_batch_is_spread_by_its_events_and_answered_in_its_order(bus: holdfast.Bus) -> None:
    names = [id_of(index, number) for number in range(5) for index in (1, 0)]
    events = [holdfast.Event({}, name) for name in names]
    anywhere = [holdfast.Event({"n": n}) for n in range(4)]
    receipts = await bus.publish_many(CHANNEL, [*events[:5], *anywhere, *events[5:]])
    assert [receipt.id for receipt in (*receipts[:5], *receipts[9:])] == names
    loose = {receipt.id for receipt in receipts[5:9]}
    assert len(loose) == 4
    places = [set(await logged(bus, index)) for index in (0, 1)]
    assert places[0] | places[1] == {*names, *loose}
    assert {id_of(0, n) for n in range(5)} <= places[0]
    assert {id_of(1, n) for n in range(5)} <= places[1]
    assert loose <= places[0] or loose <= places[1], "events that may go anywhere are all or none together"


async def test_a_poll_takes_from_all_stores_and_a_finalize_goes_home(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    for number in range(3):
        for index in (0, 1):
            await bus.publish(CHANNEL, {}, id=id_of(index, number))
    jobs = await bus.poll(CHANNEL, CONSUMER, limit=10)
    assert Counter(job.partition for job in jobs) == {0: 3, 1: 3}
    assert {job.id for job in jobs if job.partition == 0} == {job.id for job in jobs if job.partition == 1}
    done = next(job for job in jobs if job.partition == 1)
    await bus.finalize(done, success=True)
    for job in jobs:  # the namesake in the other store is untouched
        state = await state_of(bus, job.partition, job.event.id)
        assert state is (State.DONE if job is done else State.LEASED)
    with pytest.raises(holdfast.LeaseLost) as caught:
        await bus.finalize_many(jobs, success=True)
    assert caught.value.jobs == (done.id,)
    assert {await state_of(bus, job.partition, job.event.id) for job in jobs} == {State.DONE}


async def test_polls_of_one_job_take_turns_between_the_stores(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    for number in range(4):
        for index in (0, 1):
            await bus.publish(CHANNEL, {}, id=id_of(index, number))
    polled = [await bus.poll(CHANNEL, CONSUMER) for _ in range(8)]
    assert all(len(jobs) == 1 for jobs in polled)
    assert Counter(job.partition for [job] in polled[:4]) == {0: 2, 1: 2}
    assert await bus.poll(CHANNEL, CONSUMER) == []


async def test_each_store_keeps_its_own_time(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER, lease="1m")
    for index in (0, 1):
        await bus.publish(CHANNEL, {}, id=id_of(index))
    assert len(await bus.poll(CHANNEL, CONSUMER, limit=2)) == 2
    await store(bus, 1).advance(timedelta(minutes=1))
    [again] = await bus.poll(CHANNEL, CONSUMER, limit=2)
    assert (again.partition, again.token, again.abandonments) == (1, 2, 1)


async def test_one_worker_works_for_all_stores(bus: holdfast.Bus) -> None:
    app, seen, stop = holdfast.App(), Counter[str](), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, start="earliest")
    async def work(event: holdfast.Event) -> None:
        seen[event.id] += 1

    names = [id_of(index, number) for number in range(20) for index in (0, 1)]
    await bus.publish_many(CHANNEL, [holdfast.Event({}, name) for name in names])
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms"))

    async def all_seen() -> bool:
        return seen == Counter(names)

    await until(all_seen)
    stop.set()
    await running
    for index in (0, 1):
        assert (await store(bus, index).channels.consumer_stats(CHANNEL, CONSUMER)).states == {State.DONE: 20}


async def test_operators_reach_every_store(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    for index in (0, 1):
        await bus.publish(CHANNEL, {}, id=id_of(index))
        assert [each.event_id for each in await bus.find_jobs(CHANNEL, id_of(index))] == [id_of(index)]
        assert await bus.cancel(CHANNEL, id_of(index)) == 1
        assert await state_of(bus, index, id_of(index)) is State.CANCELLED
        assert [entry.event.id for entry in await bus.read(CHANNEL, partition=index)] == [id_of(index)]


async def test_a_handler_of_any_store_is_told_that_its_job_is_cancelled(bus: holdfast.Bus) -> None:
    """Both have jobs of the same number: only the store tells them apart."""
    app, stop, begun, told = holdfast.App(), asyncio.Event(), set[str](), list[tuple[str, bool]]()

    @app.handler(CHANNEL, CONSUMER, start="earliest", lease="3s")
    async def work(event: holdfast.Event, job: holdfast.Job) -> None:
        begun.add(event.id)
        try:
            await asyncio.Event().wait()
        finally:
            told.append((event.id, job.cancelled))

    names = [id_of(index) for index in (0, 1)]
    await bus.publish_many(CHANNEL, [holdfast.Event({}, name) for name in names])
    running = asyncio.create_task(app.run(bus, stop=stop, idle="100ms", grace="0s"))

    async def both_begun() -> bool:
        return begun == set(names)

    async def one_told() -> bool:
        return bool(told)

    await until(both_begun)
    assert await bus.cancel(CHANNEL, names[1], running=True) == 1
    await until(one_told)
    stop.set()
    await running
    assert told == [(names[1], True), (names[0], False)]
    assert await state_of(bus, 0, names[0]) is State.READY
    assert await state_of(bus, 1, names[1]) is State.CANCELLED


async def test_a_store_that_is_listed_twice_is_refused(urls: list[str]) -> None:
    with pytest.raises(holdfast.InvalidInput, match="twice"):
        holdfast.connect([urls[0], urls[0]])
