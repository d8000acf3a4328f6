"""The world of the WAL, and its defects: one part does things in the wrong order or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any, ClassVar

import pyarrow as pa

from holdfast.pipeline.ingest.commit import WalCommitter
from holdfast.pipeline.loader.decisions import CONSUMER_WAL, Result
from holdfast.pipeline.loader.loader import Loader, ReadyBatch
from holdfast.pipeline.wal import StagedSegment, Wal, WalBatch, WalSettings, segments
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.wal.log import HeldLease
from holdfast.pipeline.wal.records import Confirmation, GaveUp
from holdfast.pipeline.warehouse.contract import LoadOutcome
from holdfast_chaos.simulation.actors import CoroutineActor, ThreadActor
from holdfast_chaos.simulation.scheduler import Chance, Scheduler
from holdfast_chaos.simulation.wal.actors import (
    Cleaner,
    LoaderActor,
    LogPublisher,
    Outages,
    Parts,
    RepairActor,
    SimulatedDriver,
)
from holdfast_chaos.simulation.wal.checks import WalChecks
from holdfast_chaos.simulation.wal.store import MemoryCursors, MemoryLog, MemoryObjects, MemoryWarehouse
from holdfast_chaos.simulation.world import World

_SPANS = (1, 10, 60, 300, 3_600, 14_400)


class WriteAhead(World):
    """Two drivers, two loaders and a cleaner, each a process of its own on one WAL and one warehouse."""

    name: ClassVar[str] = "wal"
    rest, audit_every = timedelta(minutes=10), 1

    def __init__(self, chance: Chance, parts: Parts = Parts()) -> None:  # noqa: B008 - it is immutable
        scheduler = self.scheduler = Scheduler(chance, _SPANS)
        settings = WalSettings(
            max_retries=2 + chance.below(4),
            entry_ttl=timedelta(hours=chance.pick((1, 6, 48))),
            lease_duration=timedelta(minutes=1),
            confirmed_retention=timedelta(hours=chance.pick((1, 12))),
        )
        self._log = MemoryLog()
        self._checks = WalChecks(scheduler, self._log)
        objects = MemoryObjects(scheduler, self._checks)
        self._warehouse = warehouse = parts.warehouse(scheduler, self._checks.inserted)
        self._checks.look(objects.held, warehouse)
        wal = self._wal = Wal(objects, settings, scheduler.clock)
        self._cursors = MemoryCursors(scheduler, self._checks.cursor_moved)
        drivers = [
            ThreadActor(
                f"driver-{n}", SimulatedDriver(scheduler, wal, self._cursors, self._log, parts).run_once
            )
            for n in (1, 2)
        ]
        loaders = [
            ThreadActor(name, LoaderActor(scheduler, wal, warehouse, name, parts).run_once)
            for name in ("loader-1", "loader-2")
        ]
        cleaner = ThreadActor("cleaner", Cleaner(scheduler, wal, parts).run_once)
        mender = ThreadActor("mender", RepairActor(scheduler, wal, self._log, parts).run_once)
        shop = CoroutineActor("shop", LogPublisher(scheduler, self._log).run_once, heals=False)
        weather = CoroutineActor("weather", Outages(scheduler, wal, objects, warehouse).run_once, heals=False)
        self.actors = [*drivers, *loaders, *loaders, cleaner, mender, shop, weather]

    def heal(self) -> None:
        """The warehouse is back, too."""
        self._warehouse.down = False
        super().heal()

    def audit(self) -> None:
        self._checks.audit()

    def backlog(self) -> str:
        """What no batch holds, and what waits for the warehouse."""
        behind = len(self._log.after(self._cursors.at, len(self._log.events)))
        survey, untold = self._wal.survey(), self._checks.untold(self._wal)
        if not (behind or survey.pending or survey.quarantined or untold):
            return ""
        batches = f"{len(survey.pending)} batches pending and {len(survey.quarantined)} in quarantine"
        return f"{behind} events behind, {batches}, untold failures of {', '.join(untold[:3]) or 'none'}"

    def final_check(self) -> None:
        self._checks.final_check(self._wal)


_counter = count()


class WalCursorFirst(WalCommitter):
    """Moves the cursor before the batch is pending."""

    def commit(self, staged: Sequence[StagedSegment]) -> WalBatch | None:
        batch = batch_of(staged, self._wal.clock())
        self._advance(batch.name, batch.parts)
        return self._wal.commit(batch)


class ConfirmFirst(Loader):
    """Confirms a batch before the warehouse has it."""

    def _put(self, ready: Sequence[ReadyBatch]) -> dict[str, Result]:
        for each in ready:
            counts = (each.batch.rows, 0, 0, 0)
            self.wal.confirm(each.batch, Confirmation(self.wal.clock(), self.holder, *counts))
        return super()._put(ready)


class SilentExpiry(Loader):
    """Gives a batch up without telling the ledger: a loader that is late loads it all the same."""

    def _give_up(self, batch: WalBatch, hold: HeldLease, reason: str) -> Result:
        gave_up = GaveUp(self.wal.clock(), reason, CONSUMER_WAL, None, hold.attempt)
        self.wal.give_up(batch.name, gave_up)
        return Result.EXPIRED


class TornLoad(MemoryWarehouse):
    """Writes its ledger after the rows, in a transaction of its own."""

    def _commit(self, found: dict[str, list[dict[str, Any]]]) -> None:
        outcomes = {key: self._insert(key, rows) for key, rows in found.items()}
        ThreadActor.turn("write the ledger")
        self.ledger |= outcomes


class RivalsAreDuplicates(MemoryWarehouse):
    """Takes the same id with other content for a duplicate."""

    def _insert(self, key: str, rows: list[dict[str, Any]]) -> LoadOutcome:
        inserted, duplicates, conflicts, _ = super()._insert(key, rows)
        return LoadOutcome(inserted, duplicates + len(conflicts), ())


def clean_by_age(wal: Wal) -> int:
    """Removes what is old, confirmed or not."""
    before = wal.clock() - wal.settings.confirmed_retention
    old = [batch for batch in wal.pending() if batch.created_at <= before]
    for batch in old:
        wal.records.remove(f"pending/{batch.name}")
    return len(old)


def number_rows(wal: Wal, staged: StagedSegment) -> StagedSegment:
    """Names events by a counter, so that an event that is read again has another name."""
    rows = segments.read(wal.store, staged.segment)
    names = pa.array([f"{next(_counter):032x}" for _ in range(rows.num_rows)])
    rows = rows.set_column(rows.schema.get_field_index("transaction_id"), "transaction_id", names)
    return staged._replace(segment=segments.stage(wal.store, rows, wal.clock()))
