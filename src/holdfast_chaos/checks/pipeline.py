"""Checks of the pipeline: an archive by its objects, an ingest by its WAL and warehouse (I7 to I12, I15).

They use tools that know nothing of ours.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.model.errors import NotFound
from holdfast.pipeline.stores import ObjectStore
from holdfast_chaos import Violation

Identity = tuple[str, str, int, str]
"""channel, position, store, id"""


@dataclass
class ArchiveContents:
    """What is in an archive, and what is wrong with it."""

    events: Counter[Identity] = field(default_factory=Counter)
    lines: list[dict[str, Any]] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def ids(self) -> set[str]:
        return {identity[3] for identity in self.events}

    def missing(self, ids: Iterable[str]) -> set[str]:
        return set(ids) - self.ids


def check_archive(store: ObjectStore) -> ArchiveContents:
    """I8: the rows of all manifests are the distinct archived events, and every checksum holds."""
    found, listed, rows = ArchiveContents(), set(), 0
    reached: dict[str, str] = {}
    for entry in store.list("manifests"):
        manifest, chain = json.loads(store.get(entry.name)), entry.name.rpartition("/")[0]
        if manifest["last"] <= reached.get(chain, ""):  # by compaction: the one before it has all of it
            continue
        reached[chain] = manifest["last"]
        rows += manifest["rows"]
        for each in manifest["objects"]:
            listed.add(each["object"])
            try:
                data = store.get(each["object"])
            except NotFound:
                found.wrong.append(f"{each['object']} is in a manifest, and is not there")
                continue
            if hashlib.sha256(data).hexdigest() != each["sha256"] or len(data) != each["bytes"]:
                found.wrong.append(f"{each['object']} is not what its manifest says")
                continue
            lines = [json.loads(line) for line in gzip.decompress(data).splitlines()]
            if len(lines) != each["rows"] or [lines[0]["position"], lines[-1]["position"]] != [
                each["first"],
                each["last"],
            ]:
                found.wrong.append(f"{each['object']} holds other rows than its manifest says")
            found.lines += lines
            partition = manifest["partition"]
            found.events.update(
                (row["channel"], row["position"], partition, row["message_id"]) for row in lines
            )
    found.orphans = sorted({entry.name for entry in store.list("archive")} - listed)
    if rows != len(found.events):
        found.wrong.append(f"manifests count {rows} rows, and there are {len(found.events)} distinct events")
    return found


class Published(NamedTuple):
    """An event whose publish was acknowledged, and whether the warehouse is to have it."""

    id: str
    good: bool


PublishedEvents = Mapping[str, Published]
"""By position in the log; kept by the publisher."""


class StoredRow(NamedTuple):
    """A row of the warehouse."""

    id: str
    position: str
    batch: str


class IngestState(NamedTuple):
    """What the store, the WAL's files and the warehouse's files say at one moment."""

    cursor: str
    in_wal: set[str]
    """Positions in whole segments of batches."""
    open_batches: list[str]
    """Neither confirmed nor failed."""
    failed: Counter[str]
    """Positions with a failure in the WAL."""
    rows: Sequence[StoredRow]
    ledger: Mapping[str, int]
    """By batch: how many rows went in."""
    mirrored: Counter[str]
    """Ids in `failed_events`."""


def check_ingest(history: PublishedEvents, found: IngestState, *, drained: bool) -> list[Violation]:
    """What must hold at any moment, and with `drained` what must hold once everything has come to its end."""
    violations = [*_cursor(history, found), *_once(history, found), *_whole(found)]
    return [*violations, *_complete(history, found)] if drained else violations


def doubled(found: IngestState) -> dict[str, int]:
    """Events that are in the warehouse more than once."""
    return {id_: count for id_, count in Counter(row.id for row in found.rows).items() if count > 1}


def _cursor(history: PublishedEvents, found: IngestState) -> Iterator[Violation]:
    kept = found.in_wal | set(found.failed) | {row.position for row in found.rows}
    for position, event in history.items():
        if position <= found.cursor and position not in kept:
            yield Violation("I9", f"the cursor passed {event.id}, which is neither in the WAL nor beyond it")


def _once(history: PublishedEvents, found: IngestState) -> Iterator[Violation]:
    good = {event.id for event in history.values() if event.good}
    for id_, count in doubled(found).items():
        yield Violation("I10", f"{id_} is in the warehouse {count} times")
    for id_ in {row.id for row in found.rows} - good:
        yield Violation("I10", f"{id_} is in the warehouse, and should not be")


def _whole(found: IngestState) -> Iterator[Violation]:
    visible = Counter(row.batch for row in found.rows)
    for batch in visible.keys() | found.ledger.keys():
        if visible[batch] != found.ledger.get(batch, 0):
            entry = found.ledger.get(batch)
            yield Violation("I11", f"{visible[batch]} rows of {batch} are visible; the ledger says {entry}")


def _complete(history: PublishedEvents, found: IngestState) -> Iterator[Violation]:
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
