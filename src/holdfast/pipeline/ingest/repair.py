"""Repair: damaged batches of the WAL, staged anew from the log, else from the archive. Needs no Spark.

As long as a batch is damaged, and the log still has its events, a stream consumer of its own keeps them from
being trimmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, DataLost, HoldfastError, NotFound
from holdfast.pipeline.archive.lines import log_rows
from holdfast.pipeline.archive.manifests import Manifest, read_catalog
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import quarantine_lost
from holdfast.pipeline.ingest.staging import read_range, stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.offsets import ChannelPartition, Offsets, before
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import BatchPart, Wal, WalBatch, segments

log = logging.getLogger(__name__)
HOLDER = "ingest.repair"
"""The stream consumer that holds the events of damaged batches in the log."""


class RepairedBatch(NamedTuple):
    """A batch that is pending again, with all its events."""

    batch: str
    events: int
    origin: str
    """Where its events were read: the log, or the URL of an archive."""


class DamagedBatch(NamedTuple):
    """A batch that stays in quarantine."""

    batch: str
    error: str


class Repairs:
    """The repair of one WAL. Several may run at once: the first record of a repair holds."""

    def __init__(
        self, wal: Wal, connection: Connection, rules: ValidationRules, archives: Sequence[str] = ()
    ) -> None:
        self._wal, self._connection, self._rules, self._archives = wal, connection, rules, archives
        self._held = True  # by a driver before this one, for all that is known at the start
        self.left: list[DamagedBatch] = []
        """What the last round could not repair."""

    def run_once(self) -> list[RepairedBatch]:
        """Repair what is in quarantine. What cannot be repaired now is in `left`, with why."""
        names = sorted(self._wal.survey().quarantined)
        self.left, done, kept = [], [], set()
        for name in names:
            spots: set[ChannelPartition] = set()
            try:
                known = self._record(name)
                spots = {part.spot for part in known.parts}
                self._hold(spots)
                done.append(self._repair(known))
            except HoldfastError as error:
                self.left.append(DamagedBatch(name, str(error)))
                log.error("batch %s is damaged and cannot be repaired now: %s", name, error)
                if not isinstance(error, DataLost):
                    kept |= spots
        if names or self._held:
            self._release(kept)
        return done

    def _record(self, name: str) -> WalBatch:
        """A batch by its record or its plan, as if created now: it has its whole `entry_ttl` to be loaded."""
        try:
            return WalBatch(self._wal.parts(name), (), self._wal.clock())
        except NotFound as error:
            raise DataLost(f"nothing says what it held: {error}") from None

    def _repair(self, known: WalBatch) -> RepairedBatch:
        """quarantine → pending. `DataLost` where neither the log nor an archive has the events any more."""
        found = [self._read(part) for part in known.parts]
        origin = ", ".join(sorted({origin for _, origin in found}))
        pages = (page for rows, _ in found for page in rows.to_batches())
        staged = list(stage(self._wal.store, pages, self._rules, {}, self._wal.clock()))
        damage, rows = self._wal.damage(known.name), sum(each.segment.rows for each in staged)
        self._wal.repair(known, tuple(each.segment for each in staged), origin)
        log.warning(
            "batch %s was damaged (%s); its %s events were staged anew from %s",
            *(known.name, damage.error if damage else "repaired by another meanwhile", rows, origin),
        )
        return RepairedBatch(known.name, rows, origin)

    def _read(self, part: BatchPart) -> tuple[pa.Table, str]:
        """All events of a part, and where they were found."""
        problems: list[HoldfastError] = []
        for origin, read in self._origins():
            try:
                rows = read(part)
                _check(part, rows)
                return rows, origin
            except HoldfastError as error:
                problems.append(type(error)(f"{origin}: {error}"))
        lost = all(isinstance(error, DataLost | NotFound) for error in problems)
        text = "; ".join(map(str, problems))
        raise DataLost(text) if lost else Damaged(text)

    def _origins(self) -> Iterator[tuple[str, Callable[[BatchPart], pa.Table]]]:
        yield "the log", self._from_log
        for url in self._archives:
            store = open_store(url)
            yield store.url, partial(_from_archive, store)

    def _from_log(self, part: BatchPart) -> pa.Table:
        if part.partition >= len(self._connection.backends):
            raise NotFound(f"partition {part.partition} is no longer listed")
        pages = read_range(self._connection, part.spot, before(part.first), part.last)
        return pa.Table.from_batches(pages, SCHEMA)

    def _hold(self, spots: Iterable[ChannelPartition]) -> None:
        """Keep the logs of channels from being trimmed until `_release`."""
        for spot in spots:
            if spot.partition < len(self._connection.backends):
                self._held = True
                self._connection.run(
                    self._connection.backends[spot.partition].cursors.attach(spot.channel, HOLDER)
                )

    def _release(self, kept: set[ChannelPartition]) -> None:
        """Let the logs of all other channels be trimmed again."""
        try:
            for partition, backend in enumerate(self._connection.backends):
                for cursor in self._connection.run(backend.cursors.all()):
                    if cursor.name == HOLDER and ChannelPartition(partition, cursor.channel) not in kept:
                        self._connection.run(backend.cursors.detach(cursor.channel, HOLDER))
            self._held = bool(kept)
        except HoldfastError as error:
            log.warning("the log of repaired batches is still held: %s", error)


def _from_archive(store: ObjectStore, key: BatchPart) -> pa.Table:
    """The events of a part from an archive; `NotFound` where it does not have all of them."""
    catalog = read_catalog(store, key.channel)
    chain = [each for each in catalog.manifests if each.spot == key.spot]
    needed = [each for each in chain if each.last >= key.first and (each.after or "") < key.last]
    if not _covers(needed, key):
        raise NotFound(f"its manifests do not cover {key.first} to {key.last}")
    objects = tuple(
        each
        for manifest in needed
        for each in manifest.objects
        if each.last >= key.first <= key.last >= each.first
    )
    rows = log_rows(store, objects)
    inside = pc.and_(pc.greater_equal(rows["position"], key.first), pc.less_equal(rows["position"], key.last))
    return rows.filter(inside)


def _covers(chain: Sequence[Manifest], key: BatchPart) -> bool:
    """Whether manifests, in the order of their chain, cover a part without a gap."""
    if not chain or (chain[0].after or "") >= key.first or chain[-1].last < key.last:
        return False
    return all(one.last == other.after for one, other in pairwise(chain))


def inspect(wal: Wal, positions: Offsets) -> None:
    """Read every batch that is pending or has failed, and put those that are damaged into quarantine, and
    those whose record is gone from behind the ingest's cursors, which stand at `positions`."""
    quarantine_lost(wal, positions)
    survey = wal.survey()
    for name in sorted({*survey.pending, *survey.failed} - survey.quarantined):
        try:
            segments.read_all(wal.store, wal.batch(name).segments)
        except Damaged as damage:
            wal.quarantine(name, str(damage))
        except NotFound:
            if name in survey.failed:  # else it was confirmed and cleaned up meanwhile
                wal.quarantine(name, f"the record of batch {name} is missing")


def _check(part: BatchPart, rows: pa.Table) -> None:
    """`Damaged` where the rows are not all those of the part."""
    positions = rows["position"]
    ends = (positions[0].as_py(), positions[-1].as_py()) if rows.num_rows else None
    if ends != (part.first, part.last) or rows.num_rows != part.rows:
        raise Damaged(
            f"{rows.num_rows} events of {part.channel} are there, and not {part.rows} "
            f"from {part.first} to {part.last}"
        )
