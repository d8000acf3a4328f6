"""A warehouse in memory: rows and their ledger in one step, poison that it does not take, and outages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.chaos.simulation.actors import Process
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.errors import Terminal, Unavailable
from holdfast.pipeline.warehouse.contract import FailedEvent, Outcome

POISON = b'{"poison":true}'


class Standing(NamedTuple):
    """A row as it stands in the warehouse."""

    id: str
    data: str
    position: str
    batch: str


class MemoryWarehouse:
    """What the loader needs of a warehouse."""

    url, layer = "memory://warehouse", "memory_insert"

    def __init__(self, stage: Stage, inserted: Callable[[Standing], None]) -> None:
        self._stage, self._inserted = stage, inserted
        self.rows: dict[str, Standing] = {}
        self.ledger: dict[str, Outcome] = {}
        self.failed: dict[str, str] = {}
        """The positions of `failed_events`, by their ids."""
        self.down = False

    def load(self, key: str, channel: str, rows: pa.Table) -> Outcome:
        """See the contract."""
        self._ask("load")
        known = self.ledger.get(key)
        if known is None:
            found: list[dict[str, Any]] = rows.to_pylist()
            _refuse_poison(found)
            known = self._commit(key, found)
            self._stage.say(
                f"{known.inserted} in, {known.duplicates} duplicates, {len(known.conflicts)} rivals"
            )
        if Process.turn("answer to load"):
            self._stage.lose("load")
        return known

    def _commit(self, key: str, rows: list[dict[str, Any]]) -> Outcome:
        """One transaction: the rows and the ledger's entry."""
        outcome = self._insert(key, rows)
        self.ledger[key] = outcome
        return outcome

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
                conflicts.append(standing.position)
        return Outcome(inserted, duplicates, tuple(conflicts))

    def rehearse(self, channel: str, rows: pa.Table) -> None:
        """See the contract."""
        self._ask("rehearse")
        _refuse_poison(rows.to_pylist())

    def refuse(self, key: str, reason: str) -> Outcome:
        """See the contract."""
        self._ask("refuse")
        outcome = self.ledger.setdefault(key, Outcome(0, 0, (), reason))
        if Process.turn("answer to refuse"):
            self._stage.lose("refuse")
        return outcome

    def outcome(self, key: str) -> Outcome | None:
        """See the contract."""
        self._ask("ask the ledger")
        return self.ledger.get(key)

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        """See the contract."""
        self._ask("tell what failed")
        self.failed |= {event.id: event.position for event in events}
        if Process.turn("answer to tell what failed"):
            self._stage.lose("tell what failed")

    def _ask(self, verb: str) -> None:
        if Process.turn(verb):
            self._stage.refuse(verb)
        if self.down:
            self._stage.count("warehouse away")
            raise Unavailable("the warehouse is away")


def _refuse_poison(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["data"] == POISON.decode():
            raise Terminal(f"row {row['position']} cannot be stored")
