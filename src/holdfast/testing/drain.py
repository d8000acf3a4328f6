"""Draining: run the handlers of an app until nothing is left to do, and move the stores' clock meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration
from holdfast.model.states import State

_LOOK = 0.005


class Clock:
    """The time of every store of a bus, which a test can move forward: retries come due without waiting."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def now(self) -> datetime:
        """Return the first store's time."""
        return await self._bus.partitions.all[0].backend.now()

    async def advance(self, by: Duration) -> int:
        """Move the time forward and take what comes due then, schedules too. Returns how many jobs changed
        their state."""
        changed = 0
        for partition in self._bus.partitions.all:
            await partition.backend.advance(parse_duration(by, what="by"))
            while await partition.ticks.run_once() > 0:
                continue
            while (step := (await partition.step()).total) > 0:
                changed += step
        return changed


@dataclass(frozen=True, slots=True)
class Drained:
    """How the jobs of an app's consumers ended, as far as the stores remember."""

    done: int
    dead: int


async def drain(app: App, bus: Bus, *, patience: Duration = "30s", through_time: bool = True) -> Drained:
    """Run an app's handlers until its consumers have no live job. Returns how the jobs ended.

    Retries and schedules that lie in the future are not waited for: the store's clock moves to them, unless
    `through_time` is False; then they stay. Raises `TimeoutError` after `patience` of real
    time, with what is left.
    """
    for handler in app.handlers:
        await bus.ensure(handler.channel, handler.consumer, start=handler.start, **handler.policy)
    stop, seconds = asyncio.Event(), parse_duration(patience, what="patience").total_seconds()
    running = asyncio.create_task(app.run(bus, stop=stop, idle="20ms", listen=False))
    try:
        async with asyncio.timeout(seconds):
            while await _busy(app, bus, through_time):
                if running.done():
                    await running  # raises why
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        left = dict(await _states(app, bus))
        raise TimeoutError(f"not drained within {patience}: {left} are left; raise patience") from None
    finally:
        stop.set()
        await asyncio.gather(running, return_exceptions=True)
    states = await _states(app, bus)
    return Drained(done=states[State.DONE], dead=states[State.DEAD])


async def _busy(app: App, bus: Bus, through_time: bool) -> bool:
    states = await _states(app, bus)
    if states[State.READY] or states[State.LEASED]:
        return True
    if not states[State.SCHEDULED] or not through_time:
        return False
    due, clock = await _next_due(app, bus), Clock(bus)
    if due is not None:
        await clock.advance(max((due - await clock.now()).total_seconds(), 0.001))
    return True


async def _states(app: App, bus: Bus) -> Counter[State]:
    found: Counter[State] = Counter()
    for handler in app.handlers:
        for partition in bus.partitions.all:
            stats = await partition.backend.channels.consumer_stats(handler.channel, handler.consumer)
            found.update(stats.states)
    return found


async def _next_due(app: App, bus: Bus) -> datetime | None:
    times = [
        (await partition.backend.channels.consumer_stats(handler.channel, handler.consumer)).next_due
        for handler in app.handlers
        for partition in bus.partitions.all
    ]
    return min((each for each in times if each is not None), default=None)
