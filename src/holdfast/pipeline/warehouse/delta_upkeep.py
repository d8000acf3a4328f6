"""Upkeep of a Delta table: small files become large ones, the index follows, what nobody needs goes.

Every step is bounded and safe to kill: new files are durable before the commit that swaps them for the old
ones, and old ones go only after a while, for whoever still reads them. A commit names the version that it
follows, and is made only while all that it replaces is live; deltalake's own retries look for less, and would
double rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from holdfast import failpoints
from holdfast.model.errors import Damaged
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.upkeep import UpkeepCounts
from holdfast.pipeline.warehouse.delta_files import (
    NO_HOOKS,
    DeltaFiles,
    discard,
    live_files,
    read_file,
    read_hashes,
    removal,
    stage,
    stage_whole,
)
from holdfast.pipeline.warehouse.delta_index import HashIndex
from holdfast.pipeline.warehouse.delta_metadata import DeltaLedger
from holdfast.pipeline.warehouse.tables import DAY

log = logging.getLogger(__name__)
FEW = 8
"""Files of a day that is not over that are merged at least."""
ROWS = 2_000_000
"""Rows that are merged at most: they are in memory."""
UNCOVERED = 250_000
"""Rows in files that the index does not cover, at most."""
CHECKPOINT = 50
"""Commits between checkpoints of the log."""
_TRIES = 10
_REMOVED = 1000
_ORDER = [("channel", "ascending"), ("partition", "ascending"), ("position", "ascending")]


@dataclass(frozen=True)
class TableUpkeep:
    """The upkeep of one table."""

    files: DeltaFiles
    store: ObjectStore
    name: str
    target: int
    """Bytes of a file, at most."""
    keep: timedelta
    """How long what is replaced stays, for readers of older versions."""

    def step(self, now: datetime) -> UpkeepCounts:
        """One merge, and what the index needs; all zero where there is nothing to do."""
        delta = self.files.find(self.name)
        if delta is None:
            return UpkeepCounts()
        self.checkpoint(delta)
        live: list[dict[str, Any]] = live_files(delta).to_pylist()
        group = chosen(live, now.date(), self.target)
        done = self._merge(delta, group) if group else UpkeepCounts()
        return done.plus(self._cover()) if _is_by_day(delta) else done

    def clean(self, now: datetime) -> UpkeepCounts:
        """Remove what has not been live for a while, and entries of the log from before that."""
        delta = self.files.find(self.name)
        if delta is None:
            return UpkeepCounts()
        hours = int(self.keep.total_seconds() // 3600)
        found = delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
        there = {entry.name.removeprefix(f"{self.name}/") for entry in self.store.list(self.name)}
        gone = sorted(there & set(found))[:_REMOVED]  # the log tells for a while of those that are gone
        for path in gone:
            self.store.delete(f"{self.name}/{path}")
            failpoints.hit("compact.mid_clean")
        delta.cleanup_metadata()
        orphans = HashIndex(self.store, self.name).clean(now)
        return UpkeepCounts(removed=len(gone) + orphans + DeltaLedger(self.store).clean(now))

    def checkpoint(self, delta: DeltaTable) -> None:
        """Write a checkpoint of the log where the last one is long ago. Loads do not: they must not wait."""
        if delta.version() - self.files.last_checkpoint(self.name) >= CHECKPOINT:
            delta.create_checkpoint()
            self.files.sync_checkpoint(self.name, delta.version())

    def _merge(self, delta: DeltaTable, group: Sequence[Mapping[str, Any]]) -> UpkeepCounts:
        parts = [read_file(self.store, self.name, each["path"], each["size_bytes"]) for each in group]
        rows = pa.concat_tables(parts, promote_options="default")
        if rows.num_rows != sum(each["num_records"] for each in group):
            raise Damaged(
                f"files of table {self.name!r} have other rows than its log says; see holdfast reconcile"
            )
        by_day = _is_by_day(delta)
        write, ordered = (stage, rows.sort_by(_ORDER)) if by_day else (stage_whole, rows)
        staged = write(self.store, self.name, ordered)
        actions: list[AddAction | RemoveAction] = [
            *(removal(each, data_change=False) for each in group),
            *(each.added(data_change=False) for each in staged),
        ]
        failpoints.hit("compact.before_commit")
        paths = {each["path"] for each in group}
        for _ in range(_TRIES):
            if not paths <= set(live_files(delta)["path"].to_pylist()):
                break
            before = delta.version()
            try:
                delta.create_write_transaction(
                    actions,
                    "append",
                    delta.schema(),
                    DAY if by_day else None,
                    commit_properties=CommitProperties(max_commit_retries=0),
                    post_commithook_properties=NO_HOOKS,
                )
            except CommitFailedError:  # a load was faster
                delta.update_incremental()
                continue
            self.files.sync_commits(self.name, before)
            failpoints.hit("compact.after_commit")
            return UpkeepCounts(len(group), len(staged))
        discard(self.store, self.name, staged)
        return UpkeepCounts()

    def _cover(self) -> UpkeepCounts:
        """Have the index cover the largest files, until few rows are left that it does not."""
        delta, index = self.files.find(self.name), HashIndex(self.store, self.name)
        files: list[dict[str, Any]] = [] if delta is None else live_files(delta).to_pylist()
        live, covered = {each["path"] for each in files}, index.state().numbers
        fresh = [each for each in files if each["path"] not in covered]
        fresh.sort(key=lambda each: each["num_records"])
        left, largest = sum(each["num_records"] for each in fresh), list[dict[str, Any]]()
        while left > UNCOVERED // 2 and (largest or left > UNCOVERED):
            largest.append(fresh.pop())
            left -= largest[-1]["num_records"]
        done = 0
        for part in _bounded(largest):
            hashes = {path: read_hashes(self.store, self.name, path) for path in part}
            done += len(part) if index.add(hashes, live) else 0
        while index.merge():
            pass
        return UpkeepCounts(indexed=done)


def _is_by_day(delta: DeltaTable) -> bool:
    return delta.metadata().partition_columns == [DAY]


def _bounded(files: Iterable[Mapping[str, Any]]) -> Iterable[list[str]]:
    """Files in groups of some million rows."""
    part: list[str] = []
    rows = 0
    for each in files:
        part.append(each["path"])
        rows += each["num_records"]
        if rows >= ROWS:
            yield part
            part, rows = [], 0
    if part:
        yield part


def chosen(files: Iterable[Mapping[str, Any]], today: date, target: int) -> list[Mapping[str, Any]]:
    """The files of one day that are to become one, the most that there are; none where all is well.

    They are small ones of a day that together reach the target at most. The largest is at most as large as
    the others together, or for days that are over a few times as large: so a row is rewritten a few times.
    """

    def key(each: Mapping[str, Any]) -> str:
        return str(each.get(f"partition.{DAY}"))

    groups = []
    for _, found in groupby(sorted(files, key=key), key):
        group = _prefix(sorted(found, key=lambda each: each["size_bytes"]), target)
        day = group[0].get(f"partition.{DAY}") if group else None
        over = day is not None and day < today
        least, factor = (2, 4) if over else (FEW, 1)
        while len(group) >= least and group[-1]["size_bytes"] > factor * _size(group[:-1]):
            group.pop()
        if len(group) >= least:
            groups.append(group)
    return max(groups, key=len, default=[])


def _prefix(files: Sequence[Mapping[str, Any]], target: int) -> list[Mapping[str, Any]]:
    taken: list[Mapping[str, Any]] = []
    for each in files:
        if _size([*taken, each]) > target or sum(one["num_records"] for one in [*taken, each]) > ROWS:
            break
        taken.append(each)
    return taken


def _size(files: Iterable[Mapping[str, Any]]) -> int:
    return sum(each["size_bytes"] for each in files)
