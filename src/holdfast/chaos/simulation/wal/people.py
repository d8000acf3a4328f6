"""The people of the world of the WAL. Drivers, loaders and cleaning are our own code; the rest is weather."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from holdfast.chaos.simulation.actors import Turn
from holdfast.chaos.simulation.stage import Stage
from holdfast.chaos.simulation.wal.log import SPOT, Log, MemoryCursors, Published, page
from holdfast.chaos.simulation.wal.objects import Objects
from holdfast.chaos.simulation.wal.warehouse import POISON, MemoryWarehouse
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import Committer
from holdfast.pipeline.ingest.staging import stage as stage_rows
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.wal import Batch, Staged, Wal
from holdfast.pipeline.wal.upkeep import Upkeep
from holdfast.pipeline.warehouse import Tables, Warehouse

IDS = 30
_MOST, _ENOUGH = 15, 30
_DATA = (b'{"amount":1}',) * 12 + (b'{"amount":2}', POISON, b"no JSON")


class Parts(NamedTuple):
    """What a defect exchanges."""

    committer: type[Committer] = Committer
    loader: type[Loader] = Loader
    warehouse: type[MemoryWarehouse] = MemoryWarehouse
    clean: Callable[[Wal], object] = lambda wal: Upkeep(wal).run_once()
    restage: Callable[[Wal, Staged], Staged] = lambda wal, staged: staged


class Executor:
    """Stages rows of the log as segments."""

    def __init__(self, wal: Wal, parts: Parts) -> None:
        self._wal, self._restage = wal, parts.restage

    def stage(self, events: list[Published], after: str | None = None) -> Staged:
        """One segment, of events after a place."""
        batches = [to_batch(SPOT, page(events))]
        [staged] = stage_rows(self._wal.store, batches, Rules(), {SPOT: after}, self._wal.clock())
        return self._restage(self._wal, staged)


class Driver:
    """Stages what follows the cursor, commits it and moves the cursor. Two of them are one too many."""

    def __init__(self, stage: Stage, wal: Wal, cursors: MemoryCursors, log: Log, parts: Parts) -> None:
        self._stage, self._cursors, self._log = stage, cursors, log
        self._committer, self._executor = parts.committer(wal, cursors), Executor(wal, parts)

    def errand(self) -> None:
        """One micro-batch; after a start, what a driver before it left undone."""
        chance = self._stage.chance
        try:
            if chance.random() < 0.3:
                self._committer.recover()
            after = self._cursors.positions()[SPOT]
            events = self._log.after(after, 1 + chance.below(_MOST) if self._stage.happens(0.25) else _MOST)
            if events:
                self._committer.commit(self._stage_all(events, after))
        except HoldfastError as error:
            self._stage.say(type(error).__name__)

    def _stage_all(self, events: list[Published], after: str | None) -> list[Staged]:
        """By one executor or two; now and then one of them runs twice, and its first segment is garbage."""
        middle = len(events) // 2 if self._stage.happens(0.15) else 0
        staged = []
        for part in filter(None, (events[:middle], events[middle:])):
            staged.append(self._executor.stage(part, after))
            if self._stage.happens(0.05):
                staged[-1] = self._executor.stage(part, after)
        return staged


class LoaderAtWork:
    """One loader's rounds: batches that are due, then what failed is told to the warehouse."""

    def __init__(self, stage: Stage, wal: Wal, warehouse: MemoryWarehouse, name: str, parts: Parts) -> None:
        self._stage = stage
        target = cast(Warehouse, warehouse)
        self._loader = parts.loader(wal, target, holder=name, chance=stage.chance.random)
        self._failed = FailedEvents(wal, target, Tables())

    def errand(self) -> None:
        """One round."""
        try:
            for batch, result in self._loader.run_once(at_once=self._stage.happens(0.2)):
                self._stage.count(str(result))
                self._stage.say(f"{batch.rows} rows {result}")
            if told := self._failed.mirror():
                self._stage.say(f"told of {told} that failed")
        except HoldfastError as error:
            self._stage.say(type(error).__name__)


class Cleaner:
    """Removes what is confirmed for long enough, and segments that nobody names."""

    def __init__(self, stage: Stage, wal: Wal, parts: Parts) -> None:
        self._stage, self._wal, self._clean = stage, wal, parts.clean

    def errand(self) -> None:
        """One round."""
        try:
            self._stage.say(str(self._clean(self._wal)))
        except HoldfastError as error:
            self._stage.say(type(error).__name__)


class Mender:
    """An operator who has damaged batches staged anew from the log."""

    def __init__(self, stage: Stage, wal: Wal, log: Log, parts: Parts) -> None:
        self._stage, self._wal, self._log = stage, wal, log
        self._executor = Executor(wal, parts)

    def errand(self) -> None:
        """All that is in quarantine."""
        try:
            for name in sorted(self._wal.survey().quarantined):
                batch = Batch(self._wal.parts(name), (), self._wal.clock())
                [part] = batch.parts
                staged = self._executor.stage(self._log.within(part.first, part.last))
                if self._wal.repair(batch, (staged.segment,), "the log"):
                    self._stage.count("repaired")
        except HoldfastError as error:
            self._stage.say(type(error).__name__)


class Shop:
    """Publishes. Most events are plain; some are rivals of others, poison, or no JSON."""

    def __init__(self, stage: Stage, log: Log) -> None:
        self._stage, self._log = stage, log

    async def errand(self) -> None:
        """Some events."""
        await Turn("publish")
        if len(self._log.events) >= _ENOUGH:
            return
        for _ in range(1 + self._stage.chance.below(8)):
            self._log.append(f"e{self._stage.chance.below(IDS)}", self._stage.chance.pick(_DATA))


class Weather:
    """The warehouse goes down and comes back; now and then a disk changes a byte."""

    def __init__(self, stage: Stage, wal: Wal, objects: Objects, warehouse: MemoryWarehouse) -> None:
        self._stage, self._wal, self._objects, self._warehouse = stage, wal, objects, warehouse

    async def errand(self) -> None:
        """A change."""
        await Turn("weather")
        pending = self._wal.survey().pending
        if pending and self._stage.happens(0.1):
            segment = self._wal.batch(self._stage.chance.pick(pending)).segments[0]
            if self._objects.size(segment.name):
                self._objects.damage(segment.name)
                self._stage.say("a byte of a segment has changed")
        else:
            self._warehouse.down = not self._warehouse.down and not self._stage.calm
            self._stage.say(f"the warehouse is {'down' if self._warehouse.down else 'up'}")
