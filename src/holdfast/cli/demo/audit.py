"""The audit: what the store says about every event that it acknowledged."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice

from holdfast.bus.client import Bus
from holdfast.cli.demo.record import Record
from holdfast.model.job import LIVE, JobRecord, State

_AT_ONCE = 32
_PAGE = 5000


@dataclass(slots=True)
class Tally:
    """The demo in numbers."""

    published: int
    duplicates_refused: int
    conflicts_refused: int
    stale_answers_refused: int
    completed: int = 0
    retried: int = 0
    abandoned: int = 0
    dead: Counter[str] = field(default_factory=Counter)
    unfinished: int = 0
    lost: int = 0

    @property
    def ok(self) -> bool:
        """Nothing is lost, and nothing is left over."""
        return self.lost == 0 and self.unfinished == 0

    def count(self, jobs: list[JobRecord]) -> None:
        """One acknowledged event's jobs. It has one; without any it is lost."""
        if not jobs:
            self.lost += 1
        for job in jobs:
            self.completed += job.state is State.DONE
            self.unfinished += job.state in LIVE
            self.retried += job.attempts > 1
            self.abandoned += job.abandonments > 0
            if job.state is State.DEAD:
                self.dead[job.reason or "unknown"] += 1


async def audit(bus: Bus, record: Record) -> Tally:
    """Look up every acknowledged event in the log, and its job."""
    tally = Tally(len(record.acknowledged), record.duplicates, record.conflicts, record.stale)
    logged = {channel: await _logged(bus, channel) for channel in {name for name, _ in record.acknowledged}}
    everything = iter(record.acknowledged)
    while some := list(islice(everything, _AT_ONCE)):
        found = await asyncio.gather(*(bus.find_jobs(channel, event_id) for channel, event_id in some))
        for (channel, event_id), jobs in zip(some, found, strict=True):
            tally.count(jobs if event_id in logged[channel] else [])
    return tally


async def _logged(bus: Bus, channel: str) -> set[str]:
    """The ids in a channel's log, on every store."""
    ids: set[str] = set()
    for partition in bus.partitions.all:
        after: str | None = None
        while page := await bus.read(channel, after=after, limit=_PAGE, partition=partition.index):
            ids |= {entry.event.id for entry in page}
            after = page[-1].position
    return ids
