"""The judge of the WAL: watches every object, the cursor and the warehouse, and accounts for every event."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.chaos.simulation.stage import Stage
from holdfast.chaos.simulation.wal.log import SOURCE, SPOT, Log, Published
from holdfast.chaos.simulation.wal.warehouse import MemoryWarehouse, Standing
from holdfast.pipeline.wal import Batch, Wal
from holdfast.pipeline.wal.identity import failed_id, transaction_id
from holdfast.pipeline.wal.journal import SUFFIX, unseal
from holdfast.pipeline.wal.log import REST


class WalJudge:
    """Watches. `look` tells it what to watch, once everything is there."""

    def __init__(self, stage: Stage, log: Log) -> None:
        self._stage, self._log = stage, log
        self._batches: dict[str, Batch] = {}
        self._covered: set[str] = set()
        self._confirmed: set[str] = set()
        """Also those that were cleaned up since."""
        self._inserted: dict[str, Standing] = {}
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
            self._pending(Batch.from_json(unseal(name, data)))
        elif folder == "repairs":
            batch = Batch.from_json(unseal(name, data))
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
        if folder == "segments":
            for batch in self._batches.values():
                named = any(segment.name == name for segment in batch.segments)
                if named and batch.name not in self._confirmed:
                    self._violate("I9", f"a segment of {_short(batch.name)} was removed unconfirmed")

    def _pending(self, batch: Batch) -> None:
        """The one atomic step: from here on the WAL answers for these events."""
        self._batches.setdefault(batch.name, batch)
        self._stage.say(_short(batch.name))
        for segment in batch.segments:
            if len(self._objects.get(segment.name, b"")) != segment.bytes:
                self._violate("I9", f"{_short(batch.name)} became pending, and a segment of it is not there")
        held = self._log.within(batch.key.first, batch.key.last)
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

    def inserted(self, row: Standing) -> None:
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

    def account(self, wal: Wal) -> None:
        """Every event is in the warehouse or among the failed."""
        failed = {name: wal.failed_positions(name) for name in self._batches}
        for event in self._log.events:
            holders = [b for b in self._batches.values() if b.key.first <= event.position <= b.key.last]
            if not holders:
                self._violate("I9", f"no batch holds {event.id} at {event.position}")
            dead = [b for b in holders if event.position in failed[b.name] or wal.gave_up(b.name) is not None]
            standing = self._inserted.get(event.id)
            if not dead and not self._stands(event, standing):
                self._violate("I10", f"{event.id} at {event.position} is nowhere")
            for batch in dead:
                if standing is not None and standing[2:] == (event.position, batch.name):
                    self._violate("I10", f"{event.id} of {_short(batch.name)} is in the warehouse and failed")

    def untold(self, wal: Wal) -> list[str]:
        """What has failed in the WAL, and `failed_events` does not know it."""
        return [
            f"{each.id} at {each.position}"
            for name, batch in self._batches.items()
            for each in self._log.within(batch.key.first, batch.key.last)
            if each.position in wal.failed_positions(name) or wal.gave_up(name) is not None
            if failed_id(name, each.position) not in self._warehouse.failed
        ]

    def _stands(self, event: Published, standing: Standing | None) -> bool:
        """Whether the warehouse has it: its own row, or one of the same id and data."""
        name = transaction_id(SPOT.channel, SOURCE, event.id)
        row = self._warehouse.rows.get(name, standing)
        return row is not None and row.data is not None and row.data.encode() == event.data

    def _violate(self, invariant: str, message: str) -> None:
        self._stage.violate(invariant, message)


def _short(batch: str) -> str:
    """A batch by the numbers of its events."""
    first, last = batch.split("@")[2:4]
    return f"batch {int(first[5:], 16)}-{int(last[5:21], 16)}"
