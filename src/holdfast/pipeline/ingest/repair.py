"""Repair: damaged batches of the WAL, staged anew from the log, else from the archive. Needs no Spark.

As long as a batch is damaged, and the log still has its events, a stream consumer of its own keeps them from
being trimmed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, DataLost, HoldfastError, NotFound
from holdfast.pipeline.archive.catalog import read_catalog
from holdfast.pipeline.archive.manifest import Manifest
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.staging import read_range, stage
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.offsets import Spot, before
from holdfast.pipeline.rebuild.tasks import Stretch, source_rows
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Batch, BatchKey, Wal, segments

log = logging.getLogger(__name__)
HOLDER = "ingest.repair"
"""The stream consumer that holds the events of damaged batches in the log."""


class Repaired(NamedTuple):
    """A batch that is pending again, with all its events."""

    batch: str
    events: int
    origin: str
    """Where its events were read: the log, or the URL of an archive."""


class Unrepaired(NamedTuple):
    """A batch that stays in quarantine."""

    batch: str
    error: str


class Repairs:
    """The repair of one WAL. Several may run at once: the first record of a repair holds."""

    def __init__(self, wal: Wal, connection: Connection, rules: Rules, archives: Sequence[str] = ()) -> None:
        self._wal, self._connection, self._rules, self._archives = wal, connection, rules, archives
        self._held = True  # by a driver before this one, for all that is known at the start
        self.left: list[Unrepaired] = []
        """What the last round could not repair."""

    def run_once(self) -> list[Repaired]:
        """Repair what is in quarantine. What cannot be repaired now is in `left`, with why."""
        names = sorted(self._wal.survey().quarantined)
        self.left, done, kept = [], [], set()
        for name in names:
            spot = _spot(name)
            try:
                self._hold(spot)
                done.append(self._repair(name))
            except HoldfastError as error:
                self.left.append(Unrepaired(name, str(error)))
                log.error("batch %s is damaged and cannot be repaired now: %s", name, error)
                if not isinstance(error, DataLost):
                    kept.add(spot)
        if names or self._held:
            self._release(kept)
        return done

    def _repair(self, name: str) -> Repaired:
        """quarantine → pending. `DataLost` where neither the log nor an archive has the events any more."""
        known = _record(self._wal, name)
        rows, origin = self._read(known)
        staged = list(stage(self._wal.store, rows.to_batches(), self._rules, {}, self._wal.clock()))
        damage = self._wal.damage(name)
        self._wal.repair(known, tuple(each.segment for each in staged), origin)
        log.warning(
            "batch %s was damaged (%s); its %s events were staged anew from %s",
            *(name, damage.error if damage else "repaired by another meanwhile", rows.num_rows, origin),
        )
        return Repaired(name, rows.num_rows, origin)

    def _read(self, batch: Batch) -> tuple[pa.Table, str]:
        """All events of a batch, and where they were found."""
        problems: list[HoldfastError] = []
        for origin, read in self._origins(batch.key):
            try:
                rows = read(batch.key)
                _check(batch, rows)
                return rows, origin
            except HoldfastError as error:
                problems.append(type(error)(f"{origin}: {error}"))
        lost = all(isinstance(error, DataLost | NotFound) for error in problems)
        told = "; ".join(map(str, problems))
        raise DataLost(told) if lost else Damaged(told)

    def _origins(self, key: BatchKey) -> Iterator[tuple[str, Callable[[BatchKey], pa.Table]]]:
        yield "the log", self._from_log
        for url in self._archives:
            store = open_store(url)
            yield store.url, partial(_from_archive, store)

    def _from_log(self, key: BatchKey) -> pa.Table:
        if key.partition >= len(self._connection.backends):
            raise NotFound(f"partition {key.partition} is no longer listed")
        spot = Spot(key.partition, key.channel)
        return pa.Table.from_batches(read_range(self._connection, spot, before(key.first), key.last), SCHEMA)

    def _hold(self, spot: Spot) -> None:
        """Keep the log of a channel from being trimmed, until nothing of it is needed any more."""
        if spot.partition < len(self._connection.backends):
            self._held = True
            self._connection.run(self._connection.backends[spot.partition].attach(spot.channel, HOLDER))

    def _release(self, kept: set[Spot]) -> None:
        """Let go of every channel that nothing is needed of any more."""
        try:
            for partition, backend in enumerate(self._connection.backends):
                for cursor in self._connection.run(backend.cursors()):
                    if cursor.name == HOLDER and Spot(partition, cursor.channel) not in kept:
                        self._connection.run(backend.detach(cursor.channel, HOLDER))
            self._held = bool(kept)
        except HoldfastError as error:
            log.warning("the log of repaired batches is still held: %s", error)


def _from_archive(store: ObjectStore, key: BatchKey) -> pa.Table:
    """The events of a batch from an archive; `NotFound` where it does not have all of them."""
    catalog = read_catalog(store, key.channel)
    chain = [each for each in catalog.manifests if each.spot == (key.partition, key.channel)]
    needed = [each for each in chain if each.last >= key.first and (each.after or "") < key.last]
    if not _covers(needed, key):
        raise NotFound(f"its manifests do not cover {key.first} to {key.last}")
    objects = tuple(
        each
        for manifest in needed
        for each in manifest.objects
        if each.last >= key.first <= key.last >= each.first
    )
    rows = source_rows(store, Stretch(key, None, objects))
    inside = pc.and_(pc.greater_equal(rows["position"], key.first), pc.less_equal(rows["position"], key.last))
    return rows.filter(inside)


def _covers(chain: Sequence[Manifest], key: BatchKey) -> bool:
    """Whether manifests, in the order of their chain, cover a batch without a gap."""
    if not chain or (chain[0].after or "") >= key.first or chain[-1].last < key.last:
        return False
    return all(one.last == other.after for one, other in pairwise(chain))


def inspect(wal: Wal) -> None:
    """Read every batch that is pending or has failed, and put those that are damaged into quarantine."""
    survey = wal.survey()
    for name in sorted({*survey.pending, *survey.failed} - survey.quarantined):
        try:
            segments.read_all(wal.store, wal.batch(name).segments)
        except Damaged as damage:
            wal.quarantine(name, str(damage))
        except NotFound:
            if name in survey.failed:  # else it was confirmed and cleaned up meanwhile
                wal.quarantine(name, f"the record of batch {name} is missing")


def _record(wal: Wal, name: str) -> Batch:
    """What the batch said of itself, or what its name says. It has all its time to be loaded again."""
    key = BatchKey.parse(name)
    try:
        known = wal.batch(name)
        return Batch(key, known.after, known.segments, wal.clock())
    except (Damaged, NotFound):
        return Batch(key, before(key.first), (), wal.clock())


def _check(batch: Batch, rows: pa.Table) -> None:
    """`Damaged` where the rows are not all those of the batch."""
    key, positions = batch.key, rows["position"]
    ends = (positions[0].as_py(), positions[-1].as_py()) if rows.num_rows else None
    if ends != (key.first, key.last) or (batch.segments and rows.num_rows != batch.rows):
        wanted = f"{batch.rows} events" if batch.segments else "all"
        raise Damaged(f"{rows.num_rows} events are there, and not {wanted} from {key.first} to {key.last}")


def _spot(name: str) -> Spot:
    key = BatchKey.parse(name)
    return Spot(key.partition, key.channel)
