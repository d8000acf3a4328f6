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

CONSUMERS = 1, 10, 1_000
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
    """Publishes to channels that have one, ten and a thousand consumers, in turns; medians of the calls."""
    singles: dict[int, list[float]] = {number: [] for number in CONSUMERS}
    bulks: dict[int, list[float]] = {number: [] for number in CONSUMERS}
    async with holdfast.connect(stage.url) as bus:
        for number in CONSUMERS:
            for consumer in range(number):
                await bus.subscribe(_channel(number), f"consumer-{consumer}")
            await _publish(bus, number, WARM_ONE // 10, 1)
        await stage.settle()
        for turn in range(sizes.beside_turns):
            for number in CONSUMERS[turn % 3 :] + CONSUMERS[: turn % 3]:
                one, many = await _publish(bus, number, SINGLES, BULKS)
                singles[number] += one
                bulks[number] += many
    figures: Figures = {}
    for name, events, taken in (("one", 1, singles), ("100", BULK, bulks)):
        figures |= {f"{name}_beside_{number}": events / median(taken[number]) for number in CONSUMERS}
        alone = median(taken[1])
        figures |= {f"{name}_{number}_to_1": alone / median(taken[number]) for number in CONSUMERS[1:]}
    return figures


async def _publish(
    bus: holdfast.Bus, number: int, singles: int, bulks: int
) -> tuple[list[float], list[float]]:
    """Seconds of each call."""
    one, many = [], []
    for _ in range(singles):
        payload, began = stamped(), time.perf_counter()
        await bus.publish(_channel(number), payload)
        one.append(time.perf_counter() - began)
    for _ in range(bulks):
        events = [holdfast.Event(data=stamped()) for _ in range(BULK)]
        began = time.perf_counter()
        await bus.publish_many(_channel(number), events)
        many.append(time.perf_counter() - began)
    return one, many


def _channel(number: int) -> str:
    return f"beside-{number}"
