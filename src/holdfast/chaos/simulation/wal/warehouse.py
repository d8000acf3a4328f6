"""A warehouse in memory: rows and their ledger in one step, poison that it does not take, and outages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.chaos.simulation.actors import Process
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.errors import Terminal, Unavailable
from holdfast.pipeline.wal.rows import names
from holdfast.pipeline.warehouse.contract import FailedEvent, Load, Outcome

POISON = b'{"poison":true}'


class Standing(NamedTuple):
    """A row as it stands in the warehouse."""

    id: str
    data: str
    position: str
    batch: str


class MemoryWarehouse:
    """What the loader needs of a warehouse."""

    url, layer, reads_segments = "memory://warehouse", "memory_insert", False

    def __init__(self, stage: Stage, inserted: Callable[[Standing], None]) -> None:
        self._stage, self._inserted = stage, inserted
        self.rows: dict[str, Standing] = {}
        self.ledger: dict[str, Outcome] = {}
        self.failed: dict[str, set[str]] = defaultdict(set)
        """The positions of `failed_events`, by their batches."""
        self.down = False

    def load(self, loads: Sequence[Load]) -> list[Outcome]:
        """See the contract."""
        self._ask("load")
        found = {load.key: _listed(load.rows) for load in loads if load.key not in self.ledger}
        for rows in found.values():
            _refuse_poison(rows)
        self._commit(found)
        for key in found:
            known = self.ledger[key]
            self._stage.say(
                f"{known.inserted} in, {known.duplicates} duplicates, {len(known.conflicts)} rivals"
            )
        if Process.turn("answer to load"):
            self._stage.lose("load")
        return [self.ledger[load.key] for load in loads]

    def _commit(self, found: dict[str, list[dict[str, Any]]]) -> None:
        """One transaction: the rows and the ledger's entries."""
        self.ledger |= {key: self._insert(key, rows) for key, rows in found.items()}

    def _insert(self, key: str, rows: list[dict[str, Any]]) -> Outcome:
        inserted, duplicates, conflicts = 0, 0, []
        for row in rows:
            standing = Standing(row["id"], row["data"], row["position"], key)
            known = self.rows.get(row["transaction_id"])
            if known is None:
                self.rows[row["transaction_id"]] = standing
                self._inserted(standing)
                inserted += 1
            elif known.data == standing.data:
                duplicates += 1
            else:
                conflicts.append(row["name"])
        return Outcome(inserted, duplicates, tuple(conflicts))

    def rehearse(self, rows: pa.Table) -> None:
        """See the contract."""
        self._ask("rehearse")
        _refuse_poison(rows.to_pylist())

    def refuse(self, key: str, channels: Sequence[str], reason: str) -> Outcome:
        """See the contract."""
        self._ask("refuse")
        outcome = self.ledger.setdefault(key, Outcome(0, 0, (), reason))
        if Process.turn("answer to refuse"):
            self._stage.lose("refuse")
        return outcome

    def outcome(self, key: str, channels: Sequence[str]) -> Outcome | None:
        """See the contract."""
        self._ask("ask the ledger")
        return self.ledger.get(key)

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        """See the contract."""
        self._ask("tell what failed")
        for event in events:
            self.failed[event.batch].add(event.position)
        if Process.turn("answer to tell what failed"):
            self._stage.lose("tell what failed")

    def _ask(self, verb: str) -> None:
        if Process.turn(verb):
            self._stage.refuse(verb)
        if self.down:
            self._stage.count("warehouse away")
            raise Unavailable("the warehouse is away")


def _listed(rows: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.append_column("name", names(rows)).to_pylist()
    return found


def _refuse_poison(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["data"] == POISON.decode():
            raise Terminal(f"row {row['position']} cannot be stored")
