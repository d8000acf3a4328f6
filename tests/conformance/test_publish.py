"""Publish: durable, in order, and a job for every consumer."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import Event
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
    read_all,
    states,
    step,
    subscribe,
)
from stores import STORES


async def test_an_event_arrives_as_it_was_published(bus: Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    moment = datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=UTC)
    receipt = await bus.publish(
        CHANNEL,
        {"n": 1, "ü": [None, True, 1.5, "\u0000\U0001f600"]},
        id="o-1",
        source="shop/eu",
        type="order.placed",
        key="cust-7",
        time=moment,
        headers={"trace": "x", "größe": "ä"},
    )
    [job] = await bus.poll(CHANNEL, CONSUMER, limit=10)
    event = job.event
    assert (event.id, event.source, event.type, event.key) == ("o-1", "shop/eu", "order.placed", "cust-7")
    assert event.json() == {"n": 1, "ü": [None, True, 1.5, "\u0000\U0001f600"]}
    assert (event.time, dict(event.headers)) == (moment, {"trace": "x", "größe": "ä"})
    assert (job.channel, job.consumer, job.attempt, job.position) == (CHANNEL, CONSUMER, 1, receipt.position)
    assert (receipt.id, receipt.duplicate) == ("o-1", False)


@pytest.mark.parametrize("data", [b"", b"\x00\xff\xfe", b"not json", bytes(range(256)) * 4000])
async def test_data_is_bytes_and_comes_back_bit_by_bit(backend: Backend, data: bytes) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(data, "a")])
    assert (await claim_one(backend)).event.data == data
    assert [entry.event.data for entry in await read_all(backend)] == [data]


async def test_an_event_without_id_and_time_gets_both(bus: Bus, backend: Backend) -> None:
    before = await backend.now()
    first, second = await bus.publish_many(CHANNEL, [Event(1), Event(1)])
    assert first.id != second.id
    after = await backend.now()
    times = [entry.event.time for entry in await read_all(backend)]
    assert all(time is not None and before <= time <= after for time in times)


async def test_receipts_come_in_the_order_of_the_events(backend: Backend) -> None:
    names = [f"e-{n}" for n in range(500)]
    receipts = await publish(backend, *names)
    assert [receipt.id for receipt in receipts] == names
    assert [(entry.event.id, entry.position) for entry in await read_all(backend)] == [
        (receipt.id, receipt.position) for receipt in receipts
    ]


@pytest.mark.parametrize("count", [1, 3, 300])
async def test_times_and_headers_come_back_from_a_batch_of_any_size(backend: Backend, count: int) -> None:
    moments = [
        datetime(1, 1, 2, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2024, 2, 29, 12, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
        datetime(9999, 12, 30, 23, 59, 59, 999999, tzinfo=UTC),
    ]
    headers = [{"a": "1", "b": ""}, {}, {"ü": '"\\\U0001f600'}, {"": "x"}]
    events = [Event(n, f"e-{n}", time=moments[n % 4], headers=headers[n % 4]) for n in range(count)]
    await backend.log.publish(CHANNEL, events)
    stored = [entry.event for entry in await read_all(backend)]
    assert [(event.time, dict(event.headers)) for event in stored] == [
        (event.time, dict(event.headers)) for event in events
    ]


async def test_an_empty_batch_is_no_event(bus: Bus, backend: Backend) -> None:
    assert await bus.publish_many(CHANNEL, []) == []
    assert await read_all(backend) == []


async def test_a_scheduled_event_waits_for_its_time(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "later", at=await backend.now() + 10 * MINUTE)
    await publish(backend, "now", at=await backend.now() - timedelta(days=1))
    now = await claim_one(backend)
    assert (now.event.id, await claim(backend)) == ("now", [])
    assert await states(backend) == {State.LEASED: 1, State.SCHEDULED: 1}
    assert await complete(backend, now)
    await backend.advance(9 * MINUTE)
    assert (await step(backend)).promoted == 0
    await backend.advance(MINUTE)
    assert (await step(backend)).promoted == 1
    assert ids(await claim(backend)) == ["later"]


@pytest.mark.parametrize("store", STORES, indirect=True)  # through a pooler nobody is woken
async def test_a_publish_wakes_whoever_listens(backend: Backend) -> None:
    woken = asyncio.Event()
    listener = await backend.listen([CHANNEL], lambda _: woken.set())
    try:
        async with asyncio.timeout(60):
            await woken.wait()  # at the start, for what was said before
            for number in range(100):  # a wake-up may be missed, but not every one
                woken.clear()
                await publish(backend, f"e-{number}")
                try:
                    async with asyncio.timeout(1):
                        await woken.wait()
                        break
                except TimeoutError:
                    continue
    finally:
        await listener.close()
    assert woken.is_set()
