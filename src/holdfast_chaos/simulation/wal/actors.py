"""The actors of the world of the WAL. Drivers, loaders and cleaning are our own code; the rest is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import WalCommitter
from holdfast.pipeline.ingest.staging import stage as stage_rows
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.wal import StagedSegment, Wal, WalBatch
from holdfast.pipeline.wal.upkeep import WalUpkeep
from holdfast.pipeline.warehouse import Tables, Warehouse
from holdfast_chaos.simulation.actors import Turn
from holdfast_chaos.simulation.scheduler import Scheduler
from holdfast_chaos.simulation.wal.store import (
    POISON,
    SPOT,
    LogEvent,
    MemoryCursors,
    MemoryLog,
    MemoryObjects,
    MemoryWarehouse,
    page_of,
)

IDS = 30
_MOST, _ENOUGH = 15, 30
_DATA = (b'{"amount":1}',) * 12 + (b'{"amount":2}', POISON, b"no JSON")


class Parts(NamedTuple):
    """What a defect exchanges."""

    committer: type[WalCommitter] = WalCommitter
    loader: type[Loader] = Loader
    warehouse: type[MemoryWarehouse] = MemoryWarehouse
    clean: Callable[[Wal], object] = lambda wal: WalUpkeep(wal).run_once()
    restage: Callable[[Wal, StagedSegment], StagedSegment] = lambda wal, staged: staged


class Executor:
    """Stages rows of the log as segments."""

    def __init__(self, wal: Wal, parts: Parts) -> None:
        self._wal, self._restage = wal, parts.restage

    def stage(self, events: list[LogEvent], after: str | None = None) -> StagedSegment:
        """One segment, of events after a place."""
        batches = [to_batch(SPOT, page_of(events))]
        [staged] = stage_rows(self._wal.store, batches, ValidationRules(), {SPOT: after}, self._wal.clock())
        return self._restage(self._wal, staged)


class SimulatedDriver:
    """Stages what follows the cursor, commits it and moves the cursor. Two of them are one too many."""

    def __init__(
        self, scheduler: Scheduler, wal: Wal, cursors: MemoryCursors, log: MemoryLog, parts: Parts
    ) -> None:
        self._scheduler, self._cursors, self._log = scheduler, cursors, log
        self._committer, self._executor = parts.committer(wal, cursors), Executor(wal, parts)

    def run_once(self) -> None:
        """One micro-batch; after a start, what a driver before it left undone."""
        chance = self._scheduler.chance
        try:
            if chance.random() < 0.3:
                self._committer.recover()
            after = self._cursors.positions()[SPOT]
            events = self._log.after(
                after, 1 + chance.below(_MOST) if self._scheduler.happens(0.25) else _MOST
            )
            if events:
                self._committer.commit(self._stage_all(events, after))
        except HoldfastError as error:
            self._scheduler.say(type(error).__name__)

    def _stage_all(self, events: list[LogEvent], after: str | None) -> list[StagedSegment]:
        """By one executor or two; now and then one of them runs twice, and its first segment is garbage."""
        middle = len(events) // 2 if self._scheduler.happens(0.15) else 0
        staged = []
        for part in filter(None, (events[:middle], events[middle:])):
            staged.append(self._executor.stage(part, after))
            if self._scheduler.happens(0.05):
                staged[-1] = self._executor.stage(part, after)
        return staged


class LoaderActor:
    """One loader's rounds: batches that are due, then what failed is told to the warehouse."""

    def __init__(
        self, scheduler: Scheduler, wal: Wal, warehouse: MemoryWarehouse, name: str, parts: Parts
    ) -> None:
        self._scheduler = scheduler
        target = cast(Warehouse, warehouse)
        self._loader = parts.loader(wal, target, holder=name, chance=scheduler.chance.random)
        self._failed = FailedEvents(wal, target, Tables())

    def run_once(self) -> None:
        """One round."""
        try:
            for batch, result in self._loader.run_once(at_once=self._scheduler.happens(0.2)):
                self._scheduler.count(str(result))
                self._scheduler.say(f"{batch.rows} rows {result}")
            if told := self._failed.mirror():
                self._scheduler.say(f"told of {told} that failed")
        except HoldfastError as error:
            self._scheduler.say(type(error).__name__)


class Cleaner:
    """Removes what is confirmed for long enough, and segments that nobody names."""

    def __init__(self, scheduler: Scheduler, wal: Wal, parts: Parts) -> None:
        self._scheduler, self._wal, self._clean = scheduler, wal, parts.clean

    def run_once(self) -> None:
        """One round."""
        try:
            self._scheduler.say(str(self._clean(self._wal)))
        except HoldfastError as error:
            self._scheduler.say(type(error).__name__)


class RepairActor:
    """An operator who has damaged batches staged anew from the log."""

    def __init__(self, scheduler: Scheduler, wal: Wal, log: MemoryLog, parts: Parts) -> None:
        self._scheduler, self._wal, self._log = scheduler, wal, log
        self._executor = Executor(wal, parts)

    def run_once(self) -> None:
        """All that is in quarantine; one that cannot be repaired keeps no other from it."""
        try:
            names = sorted(self._wal.survey().quarantined)
        except HoldfastError as error:
            self._scheduler.say(type(error).__name__)
            return
        for name in names:
            try:
                self._repair(name)
            except HoldfastError as error:
                self._scheduler.say(f"batch {name[:8]} {type(error).__name__}")

    def _repair(self, name: str) -> None:
        batch = WalBatch(self._wal.parts(name), (), self._wal.clock())
        [part] = batch.parts
        staged = self._executor.stage(self._log.within(part.first, part.last))
        if self._wal.repair(batch, (staged.segment,), "the log"):
            self._scheduler.count("repaired")


class LogPublisher:
    """Publishes. Most events are plain; some are rivals of others, poison, or no JSON."""

    def __init__(self, scheduler: Scheduler, log: MemoryLog) -> None:
        self._scheduler, self._log = scheduler, log

    async def run_once(self) -> None:
        """Some events."""
        await Turn("publish")
        if len(self._log.events) >= _ENOUGH:
            return
        for _ in range(1 + self._scheduler.chance.below(8)):
            self._log.append(f"e{self._scheduler.chance.below(IDS)}", self._scheduler.chance.pick(_DATA))


class Outages:
    """The warehouse goes down and comes back; now and then a disk changes a byte."""

    def __init__(
        self, scheduler: Scheduler, wal: Wal, objects: MemoryObjects, warehouse: MemoryWarehouse
    ) -> None:
        self._scheduler, self._wal, self._objects, self._warehouse = scheduler, wal, objects, warehouse

    async def run_once(self) -> None:
        """A change."""
        await Turn("weather")
        pending = self._wal.survey().pending
        if pending and self._scheduler.happens(0.1):
            segment = self._wal.batch(self._scheduler.chance.pick(pending)).segments[0]
            if self._objects.size(segment.name):
                self._objects.damage(segment.name)
                self._scheduler.say("a byte of a segment has changed")
        else:
            self._warehouse.down = not self._warehouse.down and not self._scheduler.calm
            self._scheduler.say(f"the warehouse is {'down' if self._warehouse.down else 'up'}")
