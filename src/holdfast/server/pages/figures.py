"""Figures: what the whole system looks like at one moment, read from every store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.bus.partitions import Partition, Partitions
from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.job import State

COUNTED = 100_000
"""Lags and rates are counted up to here: a page needs no exact figure above it."""

Name = tuple[str, str]
"""Channel and consumer."""


@dataclass(slots=True)
class ChannelFigures:
    """A channel over all stores."""

    events: int = 0
    bytes: int = 0
    published: int = 0
    """Events that came in since the last look."""
    display: str = ""


@dataclass(slots=True)
class WorkerFigures:
    """A worker consumer over all stores."""

    states: Counter[State] = field(default_factory=Counter)
    oldest_ready: datetime | None = None
    paused: bool = False
    display: str = ""

    @property
    def waiting(self) -> int:
        """Jobs that are not handed out."""
        return self.states[State.READY] + self.states[State.SCHEDULED]


@dataclass(slots=True)
class StreamFigures:
    """A stream consumer over all stores."""

    lag: int = 0
    oldest: datetime | None = None
    moved_at: datetime | None = None


@dataclass(slots=True)
class Figures:
    """Everything at one moment."""

    taken: float = field(default_factory=time.monotonic)
    now: datetime | None = None
    channels: dict[str, ChannelFigures] = field(default_factory=dict)
    workers: dict[Name, WorkerFigures] = field(default_factory=dict)
    streams: dict[Name, StreamFigures] = field(default_factory=dict)
    ends: dict[tuple[int, str], str] = field(default_factory=dict)
    """Where each store's log ended, for the next look."""
    unreachable: list[str] = field(default_factory=list)

    def dead(self) -> int:
        """All dead letters of worker consumers."""
        return sum(each.states[State.DEAD] for each in self.workers.values())


async def take(partitions: Partitions, before: Figures | None) -> Figures:
    """Look at every store at once. What does not answer is missing, and said to be."""
    found = Figures()
    known = before.ends if before is not None else {}
    await asyncio.gather(*(_look(partition, known, found) for partition in partitions.all))
    return found


async def _look(partition: Partition, known: dict[tuple[int, str], str], found: Figures) -> None:
    if not partition.opened or partition.health.faulty:
        found.unreachable.append(f"store {partition.index}: {partition.health.reason or 'not open yet'}")
        return
    store = partition.backend
    try:
        found.now = await store.now()
        for channel in await store.channels():
            await _channel(store, partition.index, channel, known, found)
        await _workers(store, found)
        await _streams(store, found)
    except HoldfastError as error:
        found.unreachable.append(f"store {partition.index}: {error}")


async def _channel(
    store: Backend, index: int, channel: str, known: dict[tuple[int, str], str], found: Figures
) -> None:
    """The cost of counting what is new is in what is new, not in what is there."""
    figures = found.channels.setdefault(channel, ChannelFigures())
    size, extent = await store.size(channel), await store.extent(channel)
    figures.events += size.events
    figures.bytes += size.bytes
    before = known.get((index, channel))
    if before is not None and extent.last not in (None, before):
        figures.published += (await store.behind(channel, before, COUNTED)).events
    if extent.last is not None:
        found.ends[index, channel] = extent.last


async def _workers(store: Backend, found: Figures) -> None:
    for consumer in await store.consumers():
        figures = found.workers.setdefault((consumer.channel, consumer.name), WorkerFigures())
        figures.paused, figures.display = figures.paused or consumer.paused, consumer.display
    for backlog in await store.backlogs(COUNTED):
        figures = found.workers.setdefault((backlog.channel, backlog.consumer), WorkerFigures())
        figures.states.update(backlog.live)
        figures.oldest_ready = _earliest([figures.oldest_ready, backlog.oldest_ready])
    for each in await store.dead_counts():
        found.workers.setdefault((each.channel, each.consumer), WorkerFigures()).states[State.DEAD] += (
            each.count
        )


async def _streams(store: Backend, found: Figures) -> None:
    for cursor in await store.cursors():
        figures = found.streams.setdefault((cursor.channel, cursor.name), StreamFigures())
        lag = await store.behind(cursor.channel, cursor.position, COUNTED)
        figures.lag += lag.events
        figures.oldest = _earliest([figures.oldest, lag.oldest])
        figures.moved_at = max(filter(None, [figures.moved_at, cursor.moved_at]), default=None)


def _earliest(times: Sequence[datetime | None]) -> datetime | None:
    return min((each for each in times if each is not None), default=None)
