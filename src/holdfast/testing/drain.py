"""Draining: run the handlers of an app until nothing is left to do."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from holdfast.bus.app import App
from holdfast.bus.client import Bus
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration
from holdfast.model.job import State
from holdfast.testing.clock import Clock

_LOOK = 0.005


@dataclass(frozen=True, slots=True)
class Drained:
    """How the jobs of an app's consumers ended, as far as the stores remember."""

    done: int
    dead: int


async def drain(app: App, bus: Bus, *, patience: Duration = "30s", through_time: bool = True) -> Drained:
    """Run an app's handlers until its consumers have no live job; answers how the jobs ended.

    Retries and schedules that lie in the future are not waited for: the store's clock moves to them, unless
    `through_time` is False; then they stay. `TimeoutError` after `patience` of real time, with what is left.
    """
    for handler in app.handlers:
        await bus.ensure(handler.channel, handler.consumer, start=handler.start, **handler.policy)
    stop, seconds = asyncio.Event(), parse_duration(patience, what="patience").total_seconds()
    running = asyncio.create_task(app.run(bus, stop=stop, idle="20ms", listen=False))
    try:
        async with asyncio.timeout(seconds):
            while await _busy(app, bus, through_time):
                if running.done():
                    await running  # it says why
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
            stats = await partition.backend.consumer_stats(handler.channel, handler.consumer)
            found.update(stats.states)
    return found


async def _next_due(app: App, bus: Bus) -> datetime | None:
    times = [
        (await partition.backend.consumer_stats(handler.channel, handler.consumer)).next_due
        for handler in app.handlers
        for partition in bus.partitions.all
    ]
    return min((each for each in times if each is not None), default=None)
