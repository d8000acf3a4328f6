"""Idempotency: one event per (channel, source, id), however often and in whatever batch it is published."""

from __future__ import annotations

import asyncio
import random

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import (
    CHANNEL,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    states,
    subscribe,
)

# A backend may take another way for large batches; it must not show.
sizes = pytest.mark.parametrize(
    "more", [[Event(0, f"more-{n}") for n in range(count)] for count in (1, 600)], ids=["small", "large"]
)


async def test_a_repeat_answers_the_first_receipt_and_makes_no_second_job(backend: Backend) -> None:
    await subscribe(backend)
    [first] = await publish(backend, "a")
    [second] = await publish(backend, "a")
    assert (second.id, second.position) == (first.id, first.position)
    assert (first.duplicate, second.duplicate) == (False, True)
    assert await states(backend) == {State.READY: 1}
    assert len(await read_all(backend)) == 1


async def test_a_repeat_after_the_job_was_done_delivers_nothing(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await complete(backend, await claim_one(backend))
    [again] = await publish(backend, "a")
    assert again.duplicate
    assert await claim(backend) == []


@sizes
async def test_a_batch_may_mix_new_events_and_repeats(backend: Backend, more: list[Event]) -> None:
    await subscribe(backend)
    [old] = await backend.log.publish(CHANNEL, [Event(1, "b")])
    mixed = [Event(1, name) for name in ("a", "b", "c", "c", "a")]
    receipts = (await backend.log.publish(CHANNEL, [*more, *mixed]))[len(more) :]
    assert [receipt.duplicate for receipt in receipts] == [False, True, False, True, True]
    assert receipts[1].position == old.position
    assert (receipts[3].position, receipts[4].position) == (receipts[2].position, receipts[0].position)
    expected = ["a", "b", "c", *(event.id for event in more)]
    assert sorted(ids(await claim(backend, 1000))) == sorted(expected)
    assert await states(backend) == {State.LEASED: len(expected)}


async def test_one_event_is_the_same_in_a_large_batch_and_alone(backend: Backend) -> None:
    kinds = [("t", None, b""), ("type", "key", b"\x00"), ("typ", "", b"e"), ("größe", "schlüssel", b"\xff")]
    events = [
        Event(data, f"{source}-{n}", source=source, type=kind, key=key)
        for n, (kind, key, data) in enumerate(kinds * 100)
        for source in ("default", "andere/quelle")
    ]
    first = await backend.log.publish(CHANNEL, events)
    assert not any(receipt.duplicate for receipt in first)
    for place in (0, 1, 5, 6, 12, 19, 799):
        [again] = await backend.log.publish(CHANNEL, [events[place]])
        assert (again.duplicate, again.position) == (True, first[place].position)
    whole = await backend.log.publish(CHANNEL, events)
    assert [(r.id, r.position, r.duplicate) for r in whole] == [(r.id, r.position, True) for r in first]
    stored = await read_all(backend)
    assert [(e.event.id, e.event.source, e.event.type, e.event.key, e.event.data) for e in stored] == [
        (e.id, e.source, e.type, e.key, e.data) for e in events
    ]


async def test_the_key_of_idempotency_is_channel_source_and_id(backend: Backend) -> None:
    events = [Event(1, "a"), Event(2, "a", source="elsewhere")]
    assert [receipt.duplicate for receipt in await backend.log.publish(CHANNEL, events)] == [False, False]
    [other] = await backend.log.publish("refunds", [Event(3, "a")])
    assert not other.duplicate


async def test_source_and_id_do_not_run_into_each_other(backend: Backend) -> None:
    events = [Event(1, "c", source="ab"), Event(2, "bc", source="a")]
    assert [receipt.duplicate for receipt in await backend.log.publish(CHANNEL, events)] == [False, False]


@pytest.mark.parametrize(
    "changed",
    [Event({"n": 2}, "a"), Event({"n": 1}, "a", type="other"), Event({"n": 1}, "a", key="k")],
    ids=["data", "type", "key"],
)
@sizes
async def test_the_same_id_with_other_content_is_refused_whole(
    backend: Backend, changed: Event, more: list[Event]
) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event({"n": 1}, "a")])
    with pytest.raises(holdfast.IdConflict, match="'a'") as caught:
        await backend.log.publish(CHANNEL, [*more, changed])
    assert (caught.value.channel, caught.value.ids) == (CHANNEL, ("a",))
    assert await states(backend) == {State.READY: 1}
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]


@sizes
async def test_other_content_inside_one_batch_is_a_conflict_too(backend: Backend, more: list[Event]) -> None:
    with pytest.raises(holdfast.IdConflict) as caught:
        await backend.log.publish(CHANNEL, [Event(1, "a"), *more, Event(2, "a")])
    assert caught.value.ids == ("a",)
    assert await read_all(backend) == []


async def test_a_fresh_trace_header_or_time_is_no_other_content(backend: Backend) -> None:
    await backend.log.publish(CHANNEL, [Event(1, "a", headers={"trace": "1"})])
    [again] = await backend.log.publish(
        CHANNEL, [Event(1, "a", headers={"trace": "2"}, time=await backend.now())]
    )
    assert again.duplicate
    [entry] = await read_all(backend)
    assert entry.event.headers == {"trace": "1"}


@pytest.mark.concurrency
async def test_concurrent_publishes_of_one_id_agree_on_one_event(backend: Backend) -> None:
    await subscribe(backend)
    receipts = [r for [r] in await asyncio.gather(*(publish(backend, "a") for _ in range(16)))]
    assert len({receipt.position for receipt in receipts}) == 1
    assert [receipt.duplicate for receipt in receipts].count(False) == 1
    assert await states(backend) == {State.READY: 1}


@pytest.mark.parametrize("count", [20, 400])
async def test_batches_that_overlap_in_any_order_agree(backend: Backend, count: int) -> None:
    """Publishers that share ids may get in each other's way; the bus asks again, and none is doubled."""
    await subscribe(backend)
    events = [Event(n, f"e-{n}") for n in range(count)]

    async def publisher(seed: int) -> dict[str, tuple[str, bool]]:
        mine = random.Random(seed).sample(events, count)
        async with Bus([backend.fork()]) as bus:
            receipts = await bus.publish_many(CHANNEL, mine)
        return {receipt.id: (receipt.position, receipt.duplicate) for receipt in receipts}

    answers = await asyncio.gather(*(publisher(seed) for seed in range(4)))
    for event in events:
        positions, repeats = zip(*(answer[event.id] for answer in answers), strict=True)
        assert len(set(positions)) == 1, "every ack names the same event (I2)"
        assert repeats.count(False) == 1
    assert await states(backend) == {State.READY: count}
    assert len(await read_all(backend)) == count
