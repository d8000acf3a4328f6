"""Publishing: many publishers at once, and beside many consumers."""

from __future__ import annotations

import time
from statistics import median

import holdfast

from .consuming import joined, publish_each
from .contestants import Counts
from .measures import WARM_ONE, Figures, Stage, verify
from .payload import stamped
from .sizes import Sizes

SINGLES, BULKS, BULK = 20, 2, 100
"""Of one turn: single publishes, and bulks of so many events."""


async def publish_at_once(stage: Stage, sizes: Sizes) -> Figures:
    """Single publishes per second by many publishers at once."""
    events = sizes.singles * sizes.at_once // 4
    async with joined(stage, sizes.at_once) as publishers:
        await publish_each(publishers, [stamped() for _ in range(WARM_ONE)])
        await stage.settle()
        payloads = [stamped() for _ in range(events)]
        start = time.perf_counter()
        await publish_each(publishers, payloads)
        taken = time.perf_counter() - start
    await verify(stage, Counts(waiting=WARM_ONE + events, done=0))
    return {f"publish_{sizes.at_once}": events / taken}


async def beside_consumers(stage: Stage, sizes: Sizes) -> Figures:
    """Publishes to channels that have one, ten and many consumers, in turns; medians of the calls."""
    numbers = {"1": 1, "10": 10, "many": sizes.consumers}
    singles: dict[str, list[float]] = {name: [] for name in numbers}
    bulks: dict[str, list[float]] = {name: [] for name in numbers}
    async with holdfast.connect(stage.url) as bus:
        for name, number in numbers.items():
            for consumer in range(number):
                await bus.subscribe(_channel(name), f"consumer-{consumer}")
            await _publish(bus, name, WARM_ONE // 10, 1)
        await stage.settle()
        order = list(numbers)
        for turn in range(sizes.beside_turns):
            for name in order[turn % 3 :] + order[: turn % 3]:
                one, many = await _publish(bus, name, SINGLES, BULKS)
                singles[name] += one
                bulks[name] += many
    figures: Figures = {}
    for kind, events, taken in (("one", 1, singles), ("100", BULK, bulks)):
        figures |= {f"{kind}_beside_{name}": events / median(taken[name]) for name in numbers}
        alone = median(taken["1"])
        figures |= {f"{kind}_{name}_to_1": alone / median(taken[name]) for name in ("10", "many")}
    return figures


async def _publish(bus: holdfast.Bus, name: str, singles: int, bulks: int) -> tuple[list[float], list[float]]:
    """Seconds of each call."""
    one, many = [], []
    for _ in range(singles):
        payload, began = stamped(), time.perf_counter()
        await bus.publish(_channel(name), payload)
        one.append(time.perf_counter() - began)
    for _ in range(bulks):
        events = [holdfast.Event(data=stamped()) for _ in range(BULK)]
        began = time.perf_counter()
        await bus.publish_many(_channel(name), events)
        many.append(time.perf_counter() - began)
    return one, many


def _channel(name: str) -> str:
    return f"beside-{name}"
