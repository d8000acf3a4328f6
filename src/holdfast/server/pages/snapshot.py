"""Snapshots: the whole system at one moment, read from every store, and their history over some minutes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.bus.partitions import Partition, Partitions
from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.states import LIVE, State

COUNTED = 100_000
"""Lags and rates are counted up to here: a page needs no exact number above it."""

ConsumerKey = tuple[str, str]
"""Channel and consumer."""
KEPT = 150
"""Snapshots that the history has."""
Series = tuple[str, ...]


@dataclass(slots=True)
class ChannelSnapshot:
    """A channel over all stores."""

    events: int = 0
    bytes: int = 0
    published: int = 0
    """Events that came in since the snapshot before."""
    display: str = ""


@dataclass(slots=True)
class WorkerSnapshot:
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
class StreamSnapshot:
    """A stream consumer over all stores."""

    lag: int = 0
    oldest: datetime | None = None
    moved_at: datetime | None = None


@dataclass(slots=True)
class Snapshot:
    """Everything at one moment."""

    taken: float = field(default_factory=time.monotonic)
    now: datetime | None = None
    channels: dict[str, ChannelSnapshot] = field(default_factory=dict)
    workers: dict[ConsumerKey, WorkerSnapshot] = field(default_factory=dict)
    streams: dict[ConsumerKey, StreamSnapshot] = field(default_factory=dict)
    ends: dict[tuple[int, str], str] = field(default_factory=dict)
    """Where each store's log ended, for the next snapshot."""
    unreachable: list[str] = field(default_factory=list)

    def dead(self) -> int:
        """All dead letters of worker consumers."""
        return sum(each.states[State.DEAD] for each in self.workers.values())


async def take_snapshot(partitions: Partitions, before: Snapshot | None) -> Snapshot:
    """Read every store at once. One that does not respond is named in `unreachable`."""
    found = Snapshot()
    known = before.ends if before is not None else {}
    await asyncio.gather(*(_read_store(partition, known, found) for partition in partitions.all))
    return found


async def _read_store(partition: Partition, known: dict[tuple[int, str], str], found: Snapshot) -> None:
    if not partition.opened or partition.health.faulty:
        found.unreachable.append(f"store {partition.index}: {partition.health.reason or 'not open yet'}")
        return
    store = partition.backend
    try:
        found.now = await store.now()
        for channel in await store.channels.names():
            await _channel(store, partition.index, channel, known, found)
        await _workers(store, found)
        await _streams(store, found)
    except HoldfastError as error:
        found.unreachable.append(f"store {partition.index}: {error}")


async def _channel(
    store: Backend, index: int, channel: str, known: dict[tuple[int, str], str], found: Snapshot
) -> None:
    """Only new events are counted, so the cost does not grow with the log."""
    entry = found.channels.setdefault(channel, ChannelSnapshot())
    size, extent = await store.retention.size(channel), await store.log.extent(channel)
    entry.events += size.events
    entry.bytes += size.bytes
    before = known.get((index, channel))
    if before is not None and extent.last not in (None, before):
        entry.published += (await store.log.behind(channel, before, COUNTED)).events
    if extent.last is not None:
        found.ends[index, channel] = extent.last


async def _workers(store: Backend, found: Snapshot) -> None:
    for consumer in await store.channels.consumers():
        entry = found.workers.setdefault((consumer.channel, consumer.name), WorkerSnapshot())
        entry.paused, entry.display = entry.paused or consumer.paused, consumer.display
    for backlog in await store.channels.backlogs(COUNTED):
        entry = found.workers.setdefault((backlog.channel, backlog.consumer), WorkerSnapshot())
        entry.states.update(backlog.live)
        entry.oldest_ready = _earliest([entry.oldest_ready, backlog.oldest_ready])
    for each in await store.deadletters.counts():
        found.workers.setdefault((each.channel, each.consumer), WorkerSnapshot()).states[State.DEAD] += (
            each.count
        )


async def _streams(store: Backend, found: Snapshot) -> None:
    for cursor in await store.cursors.all():
        entry = found.streams.setdefault((cursor.channel, cursor.name), StreamSnapshot())
        lag = await store.log.behind(cursor.channel, cursor.position, COUNTED)
        entry.lag += lag.events
        entry.oldest = _earliest([entry.oldest, lag.oldest])
        entry.moved_at = max(filter(None, [entry.moved_at, cursor.moved_at]), default=None)


def _earliest(times: Sequence[datetime | None]) -> datetime | None:
    return min((each for each in times if each is not None), default=None)


class SnapshotHistory:
    """Rates and levels over time, one value for each snapshot."""

    def __init__(self, kept: int = KEPT) -> None:
        self._values: dict[Series, deque[float]] = defaultdict(lambda: deque(maxlen=kept))
        self.latest: Snapshot | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot; the first one has no rates yet."""
        before, self.latest = self.latest, snapshot
        if before is None:
            return
        seconds = max(snapshot.taken - before.taken, 1e-3)
        for channel, each in snapshot.channels.items():
            self._values["published", channel].append(each.published / seconds)
        for name, worker in snapshot.workers.items():
            came = snapshot.channels[name[0]].published if name[0] in snapshot.channels else 0
            done = max(came - _grown(before.workers.get(name), worker), 0)
            self._values["done", *name].append(done / seconds)
            self._values["waiting", *name].append(worker.waiting)
            self._values["dead", *name].append(worker.states[State.DEAD])
        for name, stream in snapshot.streams.items():
            self._values["lag", *name].append(stream.lag)

    def series(self, *name: str) -> list[float]:
        """The values of one series, oldest first."""
        return list(self._values.get(name, ()))

    def total(self, kind: str) -> list[float]:
        """The sum of all series of a kind, snapshot by snapshot, as far back as the longest goes."""
        found = [list(values) for name, values in self._values.items() if name[0] == kind]
        longest = max(map(len, found), default=0)
        padded = [[0.0] * (longest - len(values)) + values for values in found]
        return [sum(column) for column in zip(*padded, strict=True)]

    def now(self, *name: str) -> float:
        """The mean of the last few values: a single one jumps."""
        values = self.series(*name)[-5:]
        return sum(values) / len(values) if values else 0.0


def _grown(before: WorkerSnapshot | None, after: WorkerSnapshot) -> int:
    """By how much a consumer's live jobs and dead letters grew."""
    kept = (*LIVE, State.DEAD)
    earlier = sum(before.states[state] for state in kept) if before is not None else 0
    return sum(after.states[state] for state in kept) - earlier
