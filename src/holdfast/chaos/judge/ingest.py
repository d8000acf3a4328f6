"""The verdict on an ingest: what was published, against what its files say. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Published(NamedTuple):
    """An event whose publish was acknowledged, and whether the warehouse is to have it."""

    id: str
    good: bool


History = Mapping[str, Published]
"""By position in the log; kept by whoever published."""


class Stored(NamedTuple):
    """A row of the warehouse."""

    id: str
    position: str
    batch: str


class Evidence(NamedTuple):
    """What the store, the WAL's files and the warehouse's files say at one moment."""

    cursor: str
    in_wal: set[str]
    """Positions in whole segments of batches."""
    open_batches: list[str]
    """Neither confirmed nor failed."""
    failed: Counter[str]
    """Positions with a failure in the WAL."""
    rows: Sequence[Stored]
    ledger: Mapping[str, int]
    """By batch: how many rows went in."""
    mirrored: Counter[str]
    """Ids in `failed_events`."""


class Violation(NamedTuple):
    """An invariant that does not hold, and where that shows."""

    invariant: str
    what: str


def judge(history: History, found: Evidence, *, drained: bool) -> list[Violation]:
    """What must hold at any moment, and with `drained` what must hold once everything has come to its end."""
    violations = [*_cursor(history, found), *_once(history, found), *_whole(found)]
    return [*violations, *_complete(history, found)] if drained else violations


def doubled(found: Evidence) -> dict[str, int]:
    """Events that are in the warehouse more than once."""
    return {id_: count for id_, count in Counter(row.id for row in found.rows).items() if count > 1}


def _cursor(history: History, found: Evidence) -> Iterator[Violation]:
    kept = found.in_wal | set(found.failed) | {row.position for row in found.rows}
    for position, event in history.items():
        if position <= found.cursor and position not in kept:
            yield Violation("I9", f"the cursor passed {event.id}, which is neither in the WAL nor beyond it")


def _once(history: History, found: Evidence) -> Iterator[Violation]:
    good = {event.id for event in history.values() if event.good}
    for id_, count in doubled(found).items():
        yield Violation("I10", f"{id_} is in the warehouse {count} times")
    for id_ in {row.id for row in found.rows} - good:
        yield Violation("I10", f"{id_} is in the warehouse, and should not be")


def _whole(found: Evidence) -> Iterator[Violation]:
    visible = Counter(row.batch for row in found.rows)
    for batch in visible.keys() | found.ledger.keys():
        if visible[batch] != found.ledger.get(batch, 0):
            entry = found.ledger.get(batch)
            yield Violation("I11", f"{visible[batch]} rows of {batch} are visible; the ledger says {entry}")


def _complete(history: History, found: Evidence) -> Iterator[Violation]:
    present = {row.id for row in found.rows}
    for position, event in history.items():
        failed = found.failed[position]
        if event.good and event.id not in present:
            yield Violation("I10", f"{event.id} is lost")
        if failed != (not event.good):
            yield Violation("I10", f"{event.id} has {failed} failures in the WAL")
        if found.mirrored[event.id] != (not event.good):
            yield Violation("I10", f"{event.id} is in failed_events {found.mirrored[event.id]} times")
    for batch in found.open_batches:
        yield Violation("I15", f"{batch} is neither confirmed nor failed")
    if history and found.cursor != max(history):
        yield Violation("I15", f"the cursor stands at {found.cursor}, and the log ends at {max(history)}")


def falsified(published: Mapping[str, object], served: Mapping[str, object]) -> Iterator[Violation]:
    """By id: contents that the warehouse serves, and that nobody published so."""
    for id_, content in served.items():
        if content != published.get(id_):
            yield Violation("I12", f"{id_} was published as {published.get(id_)} and is served as {content}")
