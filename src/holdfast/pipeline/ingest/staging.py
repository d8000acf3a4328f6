"""Staging: rows of the source into segments of the WAL, many channels in one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from datetime import datetime
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.log import Page
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.validation import Rules, to_segment_rows
from holdfast.pipeline.offsets import Offsets, Spot
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal import Part, Staged, segments

SEGMENT_ROWS = 100_000
SEGMENT_BYTES = 64 << 20
_PAGE = 10_000


def stage(
    store: ObjectStore, batches: Iterable[pa.RecordBatch], rules: Rules, starts: Offsets, now: datetime
) -> Iterator[Staged]:
    """Write segments of what comes, without what `starts` has passed."""
    gathered: dict[Spot, list[pa.RecordBatch]] = {}
    rows = size = 0
    for batch in batches:
        for spot, its in split(batch):
            fresh = _after(its, starts.get(spot))
            if fresh.num_rows:
                gathered.setdefault(spot, []).append(fresh)
                rows, size = rows + fresh.num_rows, size + fresh.nbytes
        if rows >= SEGMENT_ROWS or size >= SEGMENT_BYTES:
            yield _stage(store, gathered, rules, starts, now)
            gathered, rows, size = {}, 0, 0
    if gathered:
        yield _stage(store, gathered, rules, starts, now)


def split(batch: pa.RecordBatch) -> Iterator[tuple[Spot, pa.RecordBatch]]:
    """Rows by channel and store. Usually all are of one."""
    keys = pa.table({"partition": batch["partition"], "channel": batch["channel"]}).group_by(
        ["partition", "channel"], use_threads=False
    )
    spots = [Spot(row["partition"], row["channel"]) for row in keys.aggregate([]).to_pylist()]
    if len(spots) == 1:
        yield spots[0], batch
        return
    for spot in spots:
        of_store = pc.equal(batch["partition"], spot.partition)
        yield spot, batch.filter(pc.and_(of_store, pc.equal(batch["channel"], spot.channel)))


def read_range(connection: Connection, spot: Spot, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
    """A range of the log, straight from its store."""
    pages = connection.backends[spot.partition].pages(spot.channel, after, until, _PAGE)
    return (to_batch(spot, page) for page in connection.iterate(cast("AsyncGenerator[Page]", pages)))


def _after(rows: pa.RecordBatch, position: str | None) -> pa.RecordBatch:
    return rows if position is None else rows.filter(pc.greater(rows["position"], position))


def _stage(
    store: ObjectStore,
    gathered: Mapping[Spot, list[pa.RecordBatch]],
    rules: Rules,
    starts: Offsets,
    now: datetime,
) -> Staged:
    parts, tables = [], []
    for spot in sorted(gathered):
        rows = pa.Table.from_batches(gathered[spot])
        first, last = rows["position"][0].as_py(), rows["position"][-1].as_py()
        parts.append(Part(*spot, first, last, starts.get(spot), rows.num_rows))
        tables.append(to_segment_rows(spot.channel, rows, rules.of(spot.channel)))
    return Staged(tuple(parts), segments.stage(store, pa.concat_tables(tables), now))
