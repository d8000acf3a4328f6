"""The stores of the world of the WAL, in memory: the log and its cursor, objects, and a warehouse."""

from __future__ import annotations

import bisect
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, Protocol

import pyarrow as pa

from holdfast.model.errors import NotFound, ObjectConflict, Terminal, Unavailable
from holdfast.model.log import Page
from holdfast.model.position import format_position
from holdfast.pipeline.ingest.commit import CursorMove
from holdfast.pipeline.offsets import ChannelPartition, Offsets
from holdfast.pipeline.stores import Entry, Tagged
from holdfast.pipeline.stores.store import content_tag
from holdfast.pipeline.wal.segments import row_names
from holdfast.pipeline.warehouse.contract import FailedEvent, Load, LoadOutcome
from holdfast_chaos.simulation.actors import ThreadActor
from holdfast_chaos.simulation.scheduler import Scheduler

SPOT = ChannelPartition(0, "orders")
SOURCE = "shop"


class LogEvent(NamedTuple):
    """One event of the log."""

    position: str
    id: str
    data: bytes


class MemoryLog:
    """Events in order. An id may come again, with the same data or with other data."""

    def __init__(self) -> None:
        self.events: list[LogEvent] = []

    def append(self, name: str, data: bytes) -> None:
        """One more event."""
        self.events.append(LogEvent(format_position(1, len(self.events) + 1), name, data))

    def after(self, position: str | None, limit: int) -> list[LogEvent]:
        """The next ones."""
        return [each for each in self.events if position is None or each.position > position][:limit]

    def within(self, first: str, last: str) -> list[LogEvent]:
        """A stretch of it."""
        return [each for each in self.events if first <= each.position <= last]


def page_of(events: Sequence[LogEvent]) -> Page:
    """Events as a store hands them out in bulk."""
    count = len(events)
    return Page(
        [each.position for each in events],
        [each.id for each in events],
        [SOURCE] * count,
        ["event"] * count,
        [None] * count,
        [0] * count,
        [{}] * count,
        [each.data for each in events],
    )


class MemoryCursors:
    """Where the ingest stands; moved by compare and swap."""

    def __init__(self, scheduler: Scheduler, moved: Callable[[str], None]) -> None:
        self._scheduler, self._moved = scheduler, moved
        self.at: str | None = None

    def positions(self) -> Offsets:
        ThreadActor.turn("read the cursor")
        return {SPOT: self.at}

    def move(self, moves: Sequence[CursorMove]) -> list[bool]:
        return [self._move_one(each.expected, each.position) for each in moves]

    def _move_one(self, expected: str | None, position: str) -> bool:
        if ThreadActor.turn("move the cursor"):
            self._scheduler.refuse("move the cursor")
        moves = self.at == expected and (expected is None or position > expected)
        if moves:
            self.at = position
            self._scheduler.say(f"to {position}")
            self._moved(position)
        else:
            self._scheduler.count("cursor refused")
        if ThreadActor.turn("answer to move the cursor"):
            self._scheduler.lose("move the cursor")
        return moves


_READS = 0.2
"""The share of reads that wait for their turn: a history of reads would be long and dull."""


class Watcher(Protocol):
    """Is told of every write as it happens."""

    def put(self, name: str, data: bytes) -> None:
        """A new object."""

    def deleted(self, name: str) -> None:
        """An object is about to go."""


class MemoryObjects:
    """An object store. Whoever is no actor (a thread of one, or the checks) does not wait."""

    url = "memory://wal"

    def __init__(self, scheduler: Scheduler, watcher: Watcher) -> None:
        self._scheduler, self._watcher = scheduler, watcher
        self.held: dict[str, bytes] = {}
        """For the checks, who takes no turns."""
        self._names: list[str] = []

    def put(self, name: str, data: bytes) -> bool:
        folder = name.partition("/")[0]
        self._ask(f"put {folder}")
        known = self.held.get(name)
        if known is not None and known != data:
            self._scheduler.count("put refused")
            raise ObjectConflict(f"{name} is there with other content")
        if known is None:
            self.held[name] = data
            bisect.insort(self._names, name)
            self._watcher.put(name, data)
        self._answer(f"put {folder}")
        return known is None

    def swap(self, name: str, tag: str, data: bytes) -> bool:
        self._ask("swap")
        found = self.held.get(name)
        fits = found is not None and content_tag(found) in (tag, content_tag(data))
        if fits:
            self.held[name] = data
        return fits

    def get(self, name: str) -> bytes:
        self._look("get")
        try:
            return self.held[name]
        except KeyError:
            raise NotFound(f"there is no object {name!r}") from None

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        data = self.get(name)
        return [data[start:end] for start, end in ranges]

    def reader(self, name: str) -> BinaryIO:
        return io.BytesIO(self.get(name))

    def tagged(self, name: str) -> Tagged:
        data = self.get(name)
        return Tagged(data, content_tag(data))

    def size(self, name: str) -> int | None:
        self._look("size")
        data = self.held.get(name)
        return None if data is None else len(data)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        self._look("list")
        folder = f"{prefix}/" if prefix else ""
        first = bisect.bisect_left(self._names, folder)
        for name in self._names[first:]:
            if not name.startswith(folder):
                return
            yield Entry(name, len(self.held[name])) if name in self.held else Entry(name, 0)

    def delete(self, name: str) -> None:
        self._ask("delete")
        if name in self.held:
            self._watcher.deleted(name)
            del self.held[name]
            self._names.remove(name)
        self._answer("delete")

    def damage(self, name: str) -> None:
        """Change a byte of an object, as a disk does."""
        data = self.held[name]
        self.held[name] = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]

    def _ask(self, verb: str) -> None:
        if ThreadActor.turn(verb):
            self._scheduler.refuse(verb)

    def _answer(self, verb: str) -> None:
        if ThreadActor.turn(f"answer to {verb}"):
            self._scheduler.lose(verb)

    def _look(self, verb: str) -> None:
        if ThreadActor.acting() and self._scheduler.happens(_READS):
            self._ask(verb)


POISON = b'{"poison":true}'


class WarehouseRow(NamedTuple):
    """A row as it stands in the warehouse."""

    id: str
    data: str
    position: str
    batch: str


class MemoryWarehouse:
    """What the loader needs of a warehouse."""

    url, layer, reads_segments = "memory://warehouse", "memory_insert", False

    def __init__(self, scheduler: Scheduler, inserted: Callable[[WarehouseRow], None]) -> None:
        self._scheduler, self._inserted = scheduler, inserted
        self.rows: dict[str, WarehouseRow] = {}
        self.ledger: dict[str, LoadOutcome] = {}
        self.failed: dict[str, set[str]] = defaultdict(set)
        """The positions of `failed_events`, by their batches."""
        self.down = False

    def load(self, loads: Sequence[Load]) -> list[LoadOutcome]:
        self._ask("load")
        found = {load.key: _listed(load.rows) for load in loads if load.key not in self.ledger}
        for rows in found.values():
            _refuse_poison(rows)
        self._commit(found)
        for key in found:
            known = self.ledger[key]
            self._scheduler.say(
                f"{known.inserted} in, {known.duplicates} duplicates, {len(known.conflicts)} rivals"
            )
        if ThreadActor.turn("answer to load"):
            self._scheduler.lose("load")
        return [self.ledger[load.key] for load in loads]

    def _commit(self, found: dict[str, list[dict[str, Any]]]) -> None:
        """One transaction: the rows and the ledger's entries."""
        self.ledger |= {key: self._insert(key, rows) for key, rows in found.items()}

    def _insert(self, key: str, rows: list[dict[str, Any]]) -> LoadOutcome:
        inserted, duplicates, conflicts = 0, 0, []
        for row in rows:
            stored = WarehouseRow(row["id"], row["data"], row["position"], key)
            known = self.rows.get(row["transaction_id"])
            if known is None:
                self.rows[row["transaction_id"]] = stored
                self._inserted(stored)
                inserted += 1
            elif known.data == stored.data:
                duplicates += 1
            else:
                conflicts.append(row["name"])
        return LoadOutcome(inserted, duplicates, tuple(conflicts))

    def rehearse(self, rows: pa.Table) -> None:
        self._ask("rehearse")
        _refuse_poison(rows.to_pylist())

    def refuse(self, key: str, channels: Sequence[str], reason: str) -> LoadOutcome:
        self._ask("refuse")
        outcome = self.ledger.setdefault(key, LoadOutcome(0, 0, (), reason))
        if ThreadActor.turn("answer to refuse"):
            self._scheduler.lose("refuse")
        return outcome

    def outcome(self, key: str, channels: Sequence[str]) -> LoadOutcome | None:
        self._ask("ask the ledger")
        return self.ledger.get(key)

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        self._ask("tell what failed")
        for event in events:
            self.failed[event.batch].add(event.position)
        if ThreadActor.turn("answer to tell what failed"):
            self._scheduler.lose("tell what failed")

    def _ask(self, verb: str) -> None:
        if ThreadActor.turn(verb):
            self._scheduler.refuse(verb)
        if self.down:
            self._scheduler.count("warehouse away")
            raise Unavailable("the warehouse is away")


def _listed(rows: pa.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.append_column("name", row_names(rows)).to_pylist()
    return found


def _refuse_poison(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["data"] == POISON.decode():
            raise Terminal(f"row {row['position']} cannot be stored")
