"""kill -9 and SIGSTOP between a tick's event and its record: each tick has one event all the same."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast_chaos.rig import Rig
from kit import read_all

CHANNEL, MANY = "reports", 12
HOUR = timedelta(hours=1)
POINT = "schedules.after_publish"


async def schedule_all(rig: Rig) -> None:
    """Several schedules of one channel, which are due."""
    async with rig.bus("setup") as bus:
        for number in range(MANY):
            await bus.schedule(f"s{number}", CHANNEL, every="1h", missed="all", data=number)
        await bus.partitions.all[0].backend.advance(HOUR)


async def ticks(backend: Backend) -> dict[str, list[str]]:
    """The ticks of each schedule that have an event."""
    found: dict[str, list[str]] = {}
    for entry in await read_all(backend, CHANNEL):
        headers = entry.event.headers
        found.setdefault(headers["holdfast-schedule"], []).append(headers["holdfast-tick"])
    return found


async def expected(bus: Bus, count: int) -> dict[str, list[str]]:
    return {
        each.name: [
            each.event(each.timing.anchor + (n + 1) * HOUR).headers["holdfast-tick"] for n in range(count)
        ]
        for each in await bus.schedules()
    }


@pytest.mark.dealt
async def test_ticks_whose_process_was_killed_are_published_once(rig: Rig) -> None:
    await schedule_all(rig)
    for _ in range(2):
        await rig.start("upkeep", f"{POINT}=kill").killed()
    async with rig.bus("watcher") as bus:
        backend = bus.partitions.all[0].backend  # opening it has finished the step
        assert await ticks(backend) == await expected(bus, 1)
        await backend.advance(HOUR)
        await rig.start("upkeep", f"{POINT}=kill").killed()
        assert await rig.start("upkeep").ended() == 0
        assert await ticks(backend) == await expected(bus, 2)
        assert {each.fired for each in await bus.schedules()} == {2}


@pytest.mark.dealt
async def test_a_process_that_stood_still_undoes_nothing(rig: Rig) -> None:
    """It has published, and stops. Meanwhile others go on; schedules are paused, changed and made anew."""
    await schedule_all(rig)
    slow = rig.start("upkeep", f"{POINT}=stop")
    await slow.stopped_itself()
    async with rig.bus("others") as bus:
        backend = bus.partitions.all[0].backend
        await bus.pause_schedule("s0", CHANNEL)
        await bus.remove_schedule("s1", CHANNEL)
        await bus.remove_schedule("s2", CHANNEL)
        await bus.schedule("s2", CHANNEL, every="2h")
        await bus.schedule("s3", CHANNEL, cron="0 3 * * *", data=3)
        before = await bus.schedules()
        assert await slow.continued() == 0
        assert await bus.schedules() == before
        found = await ticks(backend)
        assert {name: len(each) for name, each in found.items()} == {f"s{n}": 1 for n in range(MANY)}
        await backend.advance(HOUR)
        assert await rig.start("upkeep").ended() == 0
        found = await ticks(backend)
        unmoved = {"s0", "s1", "s2"} | ({"s3"} if len(found["s3"]) == 1 else set())
        assert {name for name, each in found.items() if len(each) == 1} == unmoved
        assert all(len(set(each)) == len(each) for each in found.values())
