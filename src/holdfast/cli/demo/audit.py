"""The audit: what the store has acknowledged, by the demo's own notes, and what became of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from holdfast.bus.client import Bus
from holdfast.model.event import Event, Receipt
from holdfast.model.job import JobRecord
from holdfast.model.states import LIVE, State

_AT_ONCE = 32
_PAGE = 5000


@dataclass(slots=True)
class Expected:
    """What was acknowledged, by (channel, id), and what was refused."""

    acknowledged: dict[tuple[str, str], str] = field(default_factory=dict)
    """The position in each event's first receipt."""
    sent_again: int = 0
    duplicates: int = 0
    """How many were sent again and answered with their first receipt."""
    conflicts: int = 0
    stale: int = 0
    """Answers that came after their lease was lost, and were refused."""

    def note(self, channel: str, receipts: Iterable[Receipt]) -> None:
        """The store has acknowledged new events."""
        self.acknowledged |= {(channel, receipt.id): receipt.position for receipt in receipts}

    def note_again(self, channel: str, events: Sequence[Event], receipts: Sequence[Receipt]) -> None:
        """Events were sent once more."""
        self.sent_again += len(events)
        self.duplicates += sum(
            receipt.duplicate and self.acknowledged[channel, event.id] == receipt.position
            for event, receipt in zip(events, receipts, strict=True)
        )


@dataclass(slots=True)
class DemoResult:
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


async def audit(bus: Bus, expected: Expected) -> DemoResult:
    """Look up every acknowledged event in the log, and its job."""
    result = DemoResult(len(expected.acknowledged), expected.duplicates, expected.conflicts, expected.stale)
    logged = {channel: await _logged(bus, channel) for channel in {name for name, _ in expected.acknowledged}}
    everything = iter(expected.acknowledged)
    while some := list(islice(everything, _AT_ONCE)):
        found = await asyncio.gather(*(bus.find_jobs(channel, event_id) for channel, event_id in some))
        for (channel, event_id), jobs in zip(some, found, strict=True):
            result.count(jobs if event_id in logged[channel] else [])
    return result


async def _logged(bus: Bus, channel: str) -> set[str]:
    """The ids in a channel's log, on every store."""
    ids: set[str] = set()
    for partition in bus.partitions.all:
        after: str | None = None
        while page := await bus.read(channel, after=after, limit=_PAGE, partition=partition.index):
            ids |= {entry.event.id for entry in page}
            after = page[-1].position
    return ids
