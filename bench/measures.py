"""The measures, written once for all contestants, so that the terms are the same for all.

Each takes a contestant on an empty store, proves at the end that no event was lost, and returns its
figures by name: events per second, or milliseconds for latencies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles

from .contestants import Contestant, Counts
from .crew import Crew, crew
from .payload import stamped

WARM_ONE = 50
WARM_BULK = 500
WARM_LATENCY = 20


class LostEventsError(Exception):
    """The store does not hold what was published or handled."""


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    events: int = 20_000
    singles: int = 2_000
    rate: int = 100
    seconds: float = 10.0
    rounds: int = 3
    measures: list[str] = field(default_factory=lambda: list(MEASURES))


@dataclass(frozen=True)
class Stage:
    """A contestant on its empty store, and what the measures may ask of that store."""

    contestant: Contestant
    target: str
    url: str
    settle: Callable[[], Awaitable[None]]
    """Write back and clean up what came before, so that nobody pays for it inside a measure."""


Figures = dict[str, float]
Measure = Callable[[Stage, Plan], Awaitable[Figures]]


async def publish_one(stage: Stage, plan: Plan) -> Figures:
    """One publish after the other, each durable before the next."""
    publish = stage.contestant.publish
    for _ in range(WARM_ONE):
        await publish(stamped())
    await stage.settle()
    payloads = [stamped() for _ in range(plan.singles)]
    start = time.perf_counter()
    for payload in payloads:
        await publish(payload)
    taken = time.perf_counter() - start
    await verify(stage, Counts(waiting=WARM_ONE + plan.singles, done=0))
    return {"publish_one": plan.singles / taken}


async def publish_bulk(stage: Stage, plan: Plan) -> Figures:
    """All events in one call."""
    await stage.contestant.publish_bulk([stamped() for _ in range(WARM_BULK)])
    await stage.settle()
    payloads = [stamped() for _ in range(plan.events)]
    start = time.perf_counter()
    await stage.contestant.publish_bulk(payloads)
    taken = time.perf_counter() - start
    await verify(stage, Counts(waiting=WARM_BULK + plan.events, done=0))
    return {"publish_bulk": plan.events / taken}


async def consume(stage: Stage, plan: Plan, *, processes: int) -> Figures:
    """The whole backlog in one bulk."""
    await stage.contestant.publish_bulk([stamped() for _ in range(plan.events)])
    return {f"consume_{processes}": await drained(stage, plan.events, processes)}


async def drained(stage: Stage, events: int, processes: int, target: str | None = None) -> float:
    """Events per second, from the first that is handled to the last finalize that the store shows.

    `target` works instead of the contestant that published the backlog.
    """
    contestant = stage.contestant
    await verify(stage, Counts(waiting=events, done=0))
    await stage.settle()

    async def empty() -> bool:
        return (await contestant.counts()).waiting == 0

    async with crew(target or stage.target, stage.url, processes) as workers:
        await workers.begin()
        await workers.until_handled(events, pause=0.003)
        await workers.until(empty, pause=0.002)
        taken = (time.perf_counter_ns() - workers.began) / 1e9
        await verify(stage, Counts(waiting=0, done=events))
        verify_handled(workers, events)
    return events / taken


async def latency(stage: Stage, plan: Plan) -> Figures:
    """From the publish call to the start of the handler in another process, at a steady rate."""
    steady = round(plan.rate * plan.seconds)
    events = WARM_LATENCY + steady
    async with crew(stage.target, stage.url, 1, samples=events) as workers:
        await workers.begin()
        for number in range(WARM_LATENCY):
            await stage.contestant.publish(stamped())
            await workers.until_handled(number + 1, pause=0.01)
        await stage.settle()
        await publish_steadily(stage.contestant, steady, plan.rate)
        await workers.until_handled(events, pause=0.01)
        await workers.until(partial(finalized, stage, events), pause=0.05)
        verify_handled(workers, events)
        taken = workers.latencies[WARM_LATENCY:]
    cuts = quantiles((nanoseconds / 1e6 for nanoseconds in taken), n=100, method="inclusive")
    return {"latency_p50": cuts[49], "latency_p99": cuts[98]}


async def publish_steadily(contestant: Contestant, events: int, rate: int) -> None:
    """Publish on a fixed timetable; after a slow publish the next ones catch up."""
    start = time.perf_counter()
    for number in range(events):
        await asyncio.sleep(max(0.0, start + number / rate - time.perf_counter()))
        await contestant.publish(stamped())


async def finalized(stage: Stage, events: int) -> bool:
    return (await stage.contestant.counts()).agrees(Counts(waiting=0, done=events))


async def verify(stage: Stage, expected: Counts) -> None:
    found = await stage.contestant.counts()
    if not found.agrees(expected):
        raise LostEventsError(f"expected {expected} in the store, found {found}")


def verify_handled(workers: Crew, events: int) -> None:
    if workers.handled != events:
        raise LostEventsError(f"expected {events} events to be handled once, counted {workers.handled}")


MEASURES: dict[str, Measure] = {
    "publish_one": publish_one,
    "publish_bulk": publish_bulk,
    "consume_1": partial(consume, processes=1),
    "consume_2": partial(consume, processes=2),
    "latency": latency,
}
