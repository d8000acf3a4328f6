"""Schedules over two stores: each lives on one, and its events go where their key belongs."""

from __future__ import annotations

import pytest
from spread import STORES, key_of, store

import holdfast
from holdfast.model.errors import NotFound
from kit import CHANNEL, MINUTE

NAMES = [f"s{number}" for number in range(8)]


async def tick(bus: holdfast.Bus) -> None:
    """Two minutes later on both stores, which keep one time."""
    for partition in bus.partitions.all:
        await partition.backend.advance(2 * MINUTE)
    for partition in bus.partitions.all:
        while await partition.ticks.run_once():
            continue


async def sources(bus: holdfast.Bus, index: int) -> list[str]:
    found = [entry.event.headers for entry in await store(bus, index).log.read(CHANNEL, None, 1000)]
    return sorted(headers["holdfast-schedule"] for headers in found)


async def test_each_schedule_lives_on_one_store_and_is_found_there(bus: holdfast.Bus) -> None:
    for name in NAMES:
        await bus.schedule(name, CHANNEL, every="2m", missed="all")
    lists = [
        [each.name async for each in bus.scheduling._list(store(bus, index), None)] for index in range(STORES)
    ]
    assert sorted(lists[0] + lists[1]) == NAMES
    assert all(lists)
    await tick(bus)
    assert [await sources(bus, index) for index in range(STORES)] == [sorted(each) for each in lists]
    for name in NAMES:
        assert (await bus.pause_schedule(name, CHANNEL)).paused
        await bus.remove_schedule(name, CHANNEL)
        with pytest.raises(NotFound):
            await bus.run_schedule(name, CHANNEL)
    assert await bus.schedules() == []


async def test_a_key_decides_where_the_events_go(bus: holdfast.Bus) -> None:
    for index in range(STORES):
        for name in NAMES[:4]:
            await bus.schedule(f"{name}-{index}", CHANNEL, every="2m", key=key_of(index))
    await tick(bus)
    for index in range(STORES):
        assert await sources(bus, index) == [f"{name}-{index}" for name in NAMES[:4]]


async def test_one_that_was_made_when_there_were_other_stores_is_found(bus: holdfast.Bus) -> None:
    alone = holdfast.Bus([bus.partitions.all[1].backend.fork()])
    async with alone:
        for name in NAMES:
            await alone.schedule(name, CHANNEL, every="2m")
    assert [each.name for each in await bus.schedules()] == NAMES
    for name in NAMES:
        assert (await bus.schedule(name, CHANNEL, every="2m", data=1)).content.data == b"1"
    assert len(await bus.schedules()) == len(NAMES)
