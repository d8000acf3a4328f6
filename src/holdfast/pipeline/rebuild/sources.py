"""Where single events of a channel can still be read: the WAL, the log, the archive, in this order."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, DataLost, NotFound
from holdfast.pipeline.archive.manifest import Written
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.staging import read_range
from holdfast.pipeline.ingest.validation import Rules, to_segment_rows
from holdfast.pipeline.offsets import Spot, before
from holdfast.pipeline.rebuild.tasks import Stretch, source_rows
from holdfast.pipeline.reconcile.bounds import Books, chain
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Batch, Part, Wal, segments
from holdfast.pipeline.wal.rows import only

log = logging.getLogger(__name__)
AT_ONCE = 1000
"""Events that are read from the log for one transaction."""


class Found(NamedTuple):
    """Events that were found together."""

    place: str
    """`wal`, `log` or `archive`."""
    batch: str
    """The name with which they go into the warehouse."""
    rows: pa.Table
    """As the WAL keeps them."""


class Sources:
    """Those of one channel."""

    def __init__(self, connection: Connection, books: Books, wal: Wal, rules: Rules) -> None:
        self._connection, self._books, self._wal, self._rules = connection, books, wal, rules

    def find(self, partition: int, positions: Sequence[str]) -> Iterator[Found]:
        """The events at these positions. What is nowhere, or damaged everywhere, is left out."""
        spot, left = Spot(partition, self._books.channel), set(positions)
        for place in (self._in_wal, self._in_log, self._in_archive):
            for found in place(spot, sorted(left)) if left else ():
                left -= set(found.rows["position"].to_pylist())
                yield found

    def _in_wal(self, spot: Spot, positions: Sequence[str]) -> Iterator[Found]:
        left = set(positions)
        for name in sorted({*self._wal.journal.names("pending"), *self._wal.journal.names("confirmed")}):
            try:
                batch = self._wal.batch(name)
                wanted = {each for each in left if any(part.holds(spot, each) for part in batch.parts)}
                if not wanted:
                    continue
                rows = only(_of(spot, segments.read_all(self._wal.store, batch.segments)), wanted)
            except (Damaged, NotFound) as damage:
                log.warning("batch %s of the WAL is of no use here: %s", name, damage)
                continue
            left -= set(rows["position"].to_pylist())
            if rows.num_rows:
                yield Found("wal", name, rows)

    def _in_log(self, spot: Spot, positions: Sequence[str]) -> Iterator[Found]:
        for start in range(0, len(positions), AT_ONCE):
            parts: list[pa.RecordBatch] = []
            for position in positions[start : start + AT_ONCE]:
                try:
                    parts += read_range(self._connection, spot, before(position), position)
                except DataLost:  # retention has taken it
                    continue
            yield from self._found("log", spot, parts)

    def _in_archive(self, spot: Spot, positions: Sequence[str]) -> Iterator[Found]:
        if self._books.archive is None:
            return
        store = open_store(self._books.archive)
        for written in chain(self._books).objects:
            wanted = {each for each in positions if written.first <= each <= written.last}
            if written.spot == spot and wanted:
                yield from self._found("archive", spot, _archived(store, written, wanted))

    def _found(self, place: str, spot: Spot, parts: Sequence[pa.RecordBatch]) -> Iterator[Found]:
        if not sum(part.num_rows for part in parts):
            return
        rows = pa.Table.from_batches(parts).sort_by("position")
        ends = rows["position"][0].as_py(), rows["position"][-1].as_py()
        batch = Batch((Part(*spot, *ends),), (), self._wal.clock())
        yield Found(place, batch.name, to_segment_rows(rows, self._rules))


def _of(spot: Spot, rows: pa.Table) -> pa.Table:
    same = pc.and_(pc.equal(rows["partition"], spot.partition), pc.equal(rows["channel"], spot.channel))
    return rows.filter(same)


def _archived(store: ObjectStore, written: Written, positions: set[str]) -> list[pa.RecordBatch]:
    part = Part(*written.spot, written.first, written.last, None, written.rows)
    try:
        return only(source_rows(store, Stretch(part, (written,))), positions).to_batches()  # type: ignore[no-any-return]
    except Damaged as damage:
        log.warning("%s", damage)
        return []
