"""The checks of the WAL: watch every object, the cursor and the warehouse, and every event in the end."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from holdfast.pipeline.wal import Wal, WalBatch
from holdfast.pipeline.wal.batch import transaction_id
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.wal.records import SUFFIX, unseal
from holdfast.pipeline.wal.segments import STAMP
from holdfast.pipeline.wal.upkeep import ABANDONED
from holdfast_chaos.simulation.scheduler import Scheduler
from holdfast_chaos.simulation.wal.store import (
    SOURCE,
    SPOT,
    LogEvent,
    MemoryLog,
    MemoryWarehouse,
    WarehouseRow,
)


class WalChecks:
    """Watches. `look` tells it what to watch, once everything is there."""

    def __init__(self, scheduler: Scheduler, log: MemoryLog) -> None:
        self._scheduler, self._log = scheduler, log
        self._batches: dict[str, WalBatch] = {}
        self._covered: set[str] = set()
        self._confirmed: set[str] = set()
        """Also those that were cleaned up since."""
        self._inserted: dict[str, WarehouseRow] = {}
        self._objects: Mapping[str, bytes]
        self._warehouse: MemoryWarehouse

    def look(self, objects: Mapping[str, bytes], warehouse: MemoryWarehouse) -> None:
        """What there is to watch."""
        self._objects, self._warehouse = objects, warehouse

    # told by the objects

    def put(self, name: str, data: bytes) -> None:
        """A new object."""
        folder, _, rest = name.removesuffix(SUFFIX).partition("/")
        if folder == "pending":
            self._pending(WalBatch.from_json(unseal(name, data)))
        elif folder == "repairs":
            batch = WalBatch.from_json(unseal(name, data))
            self._batches[batch.name] = batch
        elif folder == "confirmed":
            self._confirmed.add(rest)
            known = self._warehouse.ledger.get(rest)
            if known is None or known.refused is not None:
                self._violate("I10", f"{_short(rest)} was confirmed, and the warehouse has {known}")
        elif folder == "failed" and rest.endswith(f"/{REST}"):
            known = self._warehouse.ledger.get(rest.removesuffix(f"/{REST}"))
            if known is None or known.refused is None:
                self._violate("I10", f"{_short(rest)} was given up, and a late loader could still load it")

    def deleted(self, name: str) -> None:
        """An object is about to go."""
        folder, _, rest = name.removesuffix(SUFFIX).partition("/")
        if folder == "pending" and f"confirmed/{rest}{SUFFIX}" not in self._objects:
            self._violate("I9", f"{_short(rest)} was removed, and no confirmation is there")
        if folder == "segments" and not self._is_abandoned(name):
            for batch in self._batches.values():
                named = any(segment.name == name for segment in batch.segments)
                if named and batch.name not in self._confirmed:
                    self._violate("I9", f"a segment of {_short(batch.name)} was removed unconfirmed")

    def _pending(self, batch: WalBatch) -> None:
        """The one atomic step: from here on the WAL answers for these events."""
        self._batches[batch.name] = batch
        self._scheduler.say(_short(batch.name))
        for segment in batch.segments:
            whole = len(self._objects.get(segment.name, b"")) == segment.bytes
            if not whole and not self._is_abandoned(segment.name):
                self._violate("I9", f"{_short(batch.name)} became pending, and a segment of it is not there")
        held = self._held(batch)
        if len(held) != batch.rows:
            self._violate("I9", f"{_short(batch.name)} holds {batch.rows} of {len(held)} events")
        self._covered |= {each.position for each in held}

    # told by the cursor and the warehouse

    def cursor_moved(self, position: str) -> None:
        """Everything up to here is said to be in the WAL."""
        for each in self._log.events:
            if each.position <= position and each.position not in self._covered:
                self._violate("I9", f"the cursor passed {each.id} at {each.position}, which no batch holds")
                return

    def inserted(self, row: WarehouseRow) -> None:
        """A row went in."""
        known = self._inserted.setdefault(row.id, row)
        if known is not row:
            self._violate("I10", f"{row.id} is in the warehouse twice: {known.position}, {row.position}")

    # looked at by itself

    def audit(self) -> None:
        """A batch is in the warehouse whole, with its entry in the ledger, or not at all."""
        for row in self._inserted.values():
            if row.batch not in self._warehouse.ledger:
                self._violate("I11", f"rows of {_short(row.batch)} are in, and the ledger has no entry")
                return

    def final_check(self, wal: Wal) -> None:
        """Every event is in the warehouse or among the failed."""
        failed = self._failed(wal)
        for event in self._log.events:
            holders = [
                batch.name
                for batch in self._batches.values()
                if any(part.holds(SPOT, event.position) for part in batch.parts)
            ]
            if not holders:
                self._violate("I9", f"no batch holds {event.id} at {event.position}")
            dead = [name for name in holders if event.position in failed[name]]
            inserted = self._inserted.get(event.id)
            if not dead and not self._has(event, inserted):
                self._violate("I10", f"{event.id} at {event.position} is nowhere")
            for name in dead:
                if inserted is not None and inserted[2:] == (event.position, name):
                    self._violate("I10", f"{event.id} of {_short(name)} is in the warehouse and failed")

    def untold(self, wal: Wal) -> list[str]:
        """Positions that have failed in the WAL and that `failed_events` does not know. What failed in two
        batches that overlap is there once."""
        known = set[str]().union(*self._warehouse.failed.values())
        return sorted(set[str]().union(*self._failed(wal).values()) - known)

    def _failed(self, wal: Wal) -> dict[str, set[str]]:
        """The positions that have failed in each batch, by themselves or with it."""
        return {
            name: {each.rpartition("@")[2] for each in wal.failed_names(name)}
            if wal.gave_up(name) is None
            else {each.position for each in self._held(batch)}
            for name, batch in self._batches.items()
        }

    def _held(self, batch: WalBatch) -> list[LogEvent]:
        """The events within its ranges."""
        return [each for part in batch.parts for each in self._log.within(part.first, part.last)]

    def _has(self, event: LogEvent, inserted: WarehouseRow | None) -> bool:
        """Whether the warehouse has it: its own row, or one of the same id and data."""
        name = transaction_id(SPOT.channel, SOURCE, event.id)
        row = self._warehouse.rows.get(name, inserted)
        return row is not None and row.data is not None and row.data.encode() == event.data

    def _is_abandoned(self, segment: str) -> bool:
        """Whether it was staged so long ago that cleaning may take it for garbage.

        A driver that commits it all the same, after a pause of a day, has a batch in quarantine: the check
        sees to it that its events come back by a repair.
        """
        stamp = segment.rpartition("/")[2].partition("-")[0]
        return self._scheduler.now - datetime.strptime(stamp, STAMP).replace(tzinfo=UTC) >= ABANDONED

    def _violate(self, invariant: str, message: str) -> None:
        self._scheduler.violate(invariant, message)


def _short(batch: str) -> str:
    """A batch by the beginning of its name, which is a hash."""
    return f"batch {batch[:8]}"
