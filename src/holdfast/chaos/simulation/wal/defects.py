"""Defects around the WAL: the same world, with one part that does things in the wrong order or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pyarrow as pa

from holdfast.chaos.simulation.actors import Process
from holdfast.chaos.simulation.wal.warehouse import MemoryWarehouse
from holdfast.pipeline.ingest.commit import Committer
from holdfast.pipeline.loader.decisions import CONSUMER_WAL
from holdfast.pipeline.loader.loader import Loader, Ready
from holdfast.pipeline.loader.results import Result
from holdfast.pipeline.wal import Batch, Staged, Wal, segments
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.wal.leases import Hold
from holdfast.pipeline.wal.records import Confirmation, GaveUp
from holdfast.pipeline.warehouse.contract import Outcome

_counter = count()


class CursorFirst(Committer):
    """Moves the cursor before the batch is pending."""

    def commit(self, staged: Sequence[Staged]) -> Batch | None:
        batch = batch_of(staged, self._wal.clock())
        self._advance(batch.name, batch.parts)
        return self._wal.commit(batch)


class ConfirmFirst(Loader):
    """Confirms a batch before the warehouse has it."""

    def _put(self, ready: Sequence[Ready]) -> dict[str, Result]:
        for each in ready:
            counts = (each.batch.rows, 0, 0, 0)
            self.wal.confirm(each.batch, Confirmation(self.wal.clock(), self.holder, *counts))
        return super()._put(ready)


class SilentExpiry(Loader):
    """Gives a batch up without telling the ledger: a loader that is late loads it all the same."""

    def _give_up(self, batch: Batch, hold: Hold, reason: str) -> Result:
        gave_up = GaveUp(self.wal.clock(), reason, CONSUMER_WAL, None, hold.attempt)
        self.wal.give_up(batch.name, gave_up)
        return Result.EXPIRED


class TornLoad(MemoryWarehouse):
    """Writes its ledger after the rows, in a transaction of its own."""

    def _commit(self, found: dict[str, list[dict[str, Any]]]) -> None:
        outcomes = {key: self._insert(key, rows) for key, rows in found.items()}
        Process.turn("write the ledger")
        self.ledger |= outcomes


class RivalsAreDuplicates(MemoryWarehouse):
    """Takes the same id with other content for a duplicate."""

    def _insert(self, key: str, rows: list[dict[str, Any]]) -> Outcome:
        inserted, duplicates, conflicts, _ = super()._insert(key, rows)
        return Outcome(inserted, duplicates + len(conflicts), ())


def clean_by_age(wal: Wal) -> int:
    """Removes what is old, confirmed or not."""
    before = wal.clock() - wal.settings.confirmed_retention
    old = [batch for batch in wal.pending() if batch.created_at <= before]
    for batch in old:
        wal.journal.remove(f"pending/{batch.name}")
    return len(old)


def number_rows(wal: Wal, staged: Staged) -> Staged:
    """Names events by a counter, so that an event that is read again has another name."""
    rows = segments.read(wal.store, staged.segment)
    names = pa.array([f"{next(_counter):032x}" for _ in range(rows.num_rows)])
    rows = rows.set_column(rows.schema.get_field_index("transaction_id"), "transaction_id", names)
    return staged._replace(segment=segments.stage(wal.store, rows, wal.clock()))
