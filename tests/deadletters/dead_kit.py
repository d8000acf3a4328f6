"""Dying in the words of these tests: who died of what, what is left, and what a store says about it."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from typing import Any

import holdfast
from holdfast.contracts import Backend
from holdfast.deadletters import DeadLetters, Filter, Item
from holdfast.model.errors import Unavailable
from kit import CHANNEL, CONSUMER, read_all

SECOND = timedelta(seconds=1)
LAPSE = timedelta(minutes=5)
"""After which every lock of the dead has ended."""
JOBS = Filter.of(kinds=["job"])
BILLING = Filter.of(kinds=["job"], channel=CHANNEL, consumer=CONSUMER)


def store(bus: holdfast.Bus, index: int = 0) -> Backend:
    return bus.partitions.all[index].backend


async def later(bus: holdfast.Bus, by: timedelta = SECOND) -> None:
    """Time passes on every store."""
    for partition in bus.partitions.all:
        await partition.backend.advance(by)


async def subscribe(
    bus: holdfast.Bus, consumer: str = CONSUMER, channel: str = CHANNEL, **policy: Any
) -> None:
    await bus.subscribe(channel, consumer, start="earliest", **policy)


async def die(
    bus: holdfast.Bus,
    *ids: str,
    error: BaseException | str = "boom",
    consumer: str = CONSUMER,
    channel: str = CHANNEL,
    terminal: bool = True,
) -> None:
    """Publish events and let their jobs die, one after the other; then a second passes."""
    for name in ids:
        await bus.publish(channel, {"id": name}, id=name)
        await fail(bus, error=error, consumer=consumer, channel=channel, terminal=terminal)
    await later(bus)


async def fail(
    bus: holdfast.Bus,
    *,
    error: BaseException | str = "boom",
    consumer: str = CONSUMER,
    channel: str = CHANNEL,
    terminal: bool = True,
) -> None:
    """Everything that is ready fails."""
    while jobs := await bus.poll(channel, consumer, limit=100):
        await bus.finalize_many(jobs, success=False, error=error, terminal=terminal)


async def work(
    bus: holdfast.Bus, *, bad: tuple[str, ...] = (), consumer: str = CONSUMER, channel: str = CHANNEL
) -> list[str]:
    """Everything that is ready succeeds, except for `bad`, which dies; answers the ids."""
    done: list[str] = []
    while jobs := await bus.poll(channel, consumer, limit=100):
        for job in jobs:
            good = job.event.id not in bad
            await bus.finalize(job, success=good, error=None if good else "still bad", terminal=True)
        done += [job.event.id for job in jobs]
    return done


async def found(letters: DeadLetters, wanted: Filter = JOBS, limit: int = 100) -> list[Item]:
    """The list to its end."""
    items: list[Item] = []
    after = None
    for _ in range(1000):
        page = await letters.find(wanted, after, limit)
        assert len(page.items) <= limit
        items, after = items + page.items, page.after
        if after is None:
            return items
    raise AssertionError("the list does not end")


async def names(letters: DeadLetters, wanted: Filter = JOBS, limit: int = 100) -> list[str]:
    return [item.event_id for item in await found(letters, wanted, limit)]


async def dead(bus: holdfast.Bus) -> int:
    """How many dead letters the counts know."""
    return sum(each.dead for each in await DeadLetters(bus).status())


async def states(bus: holdfast.Bus, consumer: str = CONSUMER, channel: str = CHANNEL) -> Counter[str]:
    total: Counter[str] = Counter()
    for partition in bus.partitions.all:
        stats = await partition.backend.channels.consumer_stats(channel, consumer)
        total.update({str(state): count for state, count in stats.states.items()})
    return total


async def audited(bus: holdfast.Bus) -> list[dict[str, Any]]:
    """The audit from its beginning."""
    return [json.loads(e.event.data) for e in await read_all(store(bus), "gbe.events.system.audit")]


def cut_off() -> None:
    """At a failpoint: the store does not answer any more, and the run leaves everything as it is."""
    raise Unavailable("cut off")
