"""The log: one order, positions that sort as text, and epochs."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.event import Event
from kit import CHANNEL, claim_one, complete, publish, read_all, subscribe
from stores import Store


async def test_the_log_reads_in_the_order_of_publication(backend: Backend) -> None:
    names = [f"e-{n}" for n in range(40)]
    for name in names[:20]:
        await publish(backend, name)
    await publish(backend, *names[20:])
    assert [entry.event.id for entry in await read_all(backend)] == names


async def test_positions_sort_as_text(backend: Backend) -> None:
    for n in range(300):
        await publish(backend, f"e-{n}")
    positions = [entry.position for entry in await read_all(backend)]
    assert positions == sorted(positions)
    assert len(set(positions)) == 300


async def test_a_receipt_names_the_position_in_the_log(backend: Backend) -> None:
    receipts = await publish(backend, "a", "b")
    entries = await read_all(backend)
    assert [(entry.channel, entry.position) for entry in entries] == [(CHANNEL, r.position) for r in receipts]


@pytest.mark.parametrize("page", [1, 7, 100])
async def test_pages_join_without_gap_or_repeat(backend: Backend, page: int) -> None:
    names = [f"e-{n}" for n in range(50)]
    await publish(backend, *names)
    assert [entry.event.id for entry in await read_all(backend, page=page)] == names


async def test_reading_is_replayable(backend: Backend) -> None:
    await publish(backend, "a", "b", "c")
    first = await read_all(backend)
    await subscribe(backend, start="earliest")
    await publish(backend, "d")
    assert await backend.log.read(CHANNEL, first[0].position, 2) == first[1:3]
    assert await backend.log.read(CHANNEL, None, 3) == first


async def test_the_log_keeps_what_is_done(backend: Backend) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await complete(backend, await claim_one(backend))
    assert [entry.event.id for entry in await read_all(backend)] == ["a"]


async def test_the_log_keeps_the_type_of_its_events(bus: Bus, backend: Backend) -> None:
    # CORRECTIONS 001.6: the payload's type is not lost.
    await bus.publish(CHANNEL, {"n": 1}, type="order.placed")
    [entry] = await bus.read(CHANNEL)
    assert (entry.event.type, entry.event.json()) == ("order.placed", {"n": 1})


async def test_channels_have_logs_of_their_own(backend: Backend) -> None:
    for turn in range(5):
        await publish(backend, f"a-{turn}")
        await publish(backend, f"b-{turn}", channel="refunds")
    assert [entry.event.id for entry in await read_all(backend)] == [f"a-{n}" for n in range(5)]
    assert await backend.log.read("nowhere", None, 10) == []


async def test_a_cursor_that_follows_live_publishes_misses_nothing(backend: Backend) -> None:
    # CORRECTIONS 001.9, I14: commits interleave, and no cursor passes one that comes later below it.
    seen: list[str] = []
    position: str | None = None

    async def publisher(number: int) -> None:
        for turn in range(40):
            await backend.log.publish(CHANNEL, [Event(turn, f"{number}-{turn}-{n}") for n in range(turn % 3)])

    expected = sum(turn % 3 for turn in range(40)) * 6
    async with asyncio.timeout(60):
        publishers = asyncio.gather(*(publisher(number) for number in range(6)))
        while len(seen) < expected:
            for entry in await backend.log.read(CHANNEL, position, 25):
                assert position is None or entry.position > position
                position = entry.position
                seen.append(entry.event.id)
        await publishers
    assert await backend.log.read(CHANNEL, position, 1) == []
    assert len(seen) == len(set(seen)) == expected


async def test_a_restored_store_writes_above_every_old_position(store: Store, backend: Backend) -> None:
    old = [receipt.position for receipt in await publish(backend, "a", "b")]
    before = await backend.epoch()
    await store.become_restored()
    reborn = backend.fork()
    await reborn.open()
    try:
        assert await reborn.epoch() > before
        new = [receipt.position for receipt in await publish(reborn, "c", "d")]
        assert max(old) < min(new)
        epochs = [int(position.split("-")[0], 16) for position in (old[0], new[0])]
        assert epochs == [before, await reborn.epoch()], "another epoch"
        assert [entry.event.id for entry in await read_all(reborn)] == ["a", "b", "c", "d"]
        assert [entry.event.id for entry in await reborn.log.read(CHANNEL, old[1], 10)] == ["c", "d"]
        [again] = await publish(reborn, "a")
        assert (again.position, again.duplicate) == (old[0], True)
    finally:
        await reborn.close()


async def test_opening_a_store_again_is_no_new_life(backend: Backend) -> None:
    [first] = await publish(backend, "a")
    again = backend.fork()
    await again.open()
    [second] = await publish(again, "b")
    await again.close()
    assert first.position.split("-")[0] == second.position.split("-")[0]


@pytest.mark.parametrize("position", ["", "nonsense", "0001", "zzzz-0", "0001-00", "\x00", "ÿ"])
async def test_what_is_no_position_is_refused_by_name(bus: Bus, position: str) -> None:
    with pytest.raises(holdfast.InvalidInput) as caught:
        await bus.read(CHANNEL, after=position)
    assert repr(position) in str(caught.value)
