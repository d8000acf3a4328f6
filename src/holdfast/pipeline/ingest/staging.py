"""Staging: rows of the source, channel by channel, into segments of the WAL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from datetime import datetime
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.log import Page
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import Staged
from holdfast.pipeline.ingest.validation import Rules, to_segment_rows
from holdfast.pipeline.offsets import Offsets, Spot
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal import segments

SEGMENT_ROWS = 100_000
SEGMENT_BYTES = 64 << 20
_PAGE = 10_000


def stage(
    store: ObjectStore, batches: Iterable[pa.RecordBatch], rules: Rules, starts: Offsets, now: datetime
) -> Iterator[Staged]:
    """Write segments of what comes, each of one channel of one store, without what `starts` has passed."""
    gathered: dict[Spot, list[pa.RecordBatch]] = {}
    for batch in batches:
        for spot, rows in split(batch):
            fresh = _after(rows, starts.get(spot))
            if not fresh.num_rows:
                continue
            parts = gathered.setdefault(spot, [])
            parts.append(fresh)
            if _is_full(parts):
                yield _stage(store, spot, gathered.pop(spot), rules, now)
    for spot, parts in gathered.items():
        yield _stage(store, spot, parts, rules, now)


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
    """A stretch of the log, straight from its store."""
    pages = connection.backends[spot.partition].pages(spot.channel, after, until, _PAGE)
    return (to_batch(spot, page) for page in connection.iterate(cast("AsyncGenerator[Page]", pages)))


def _after(rows: pa.RecordBatch, position: str | None) -> pa.RecordBatch:
    return rows if position is None else rows.filter(pc.greater(rows["position"], position))


def _is_full(parts: list[pa.RecordBatch]) -> bool:
    rows, size = sum(part.num_rows for part in parts), sum(part.nbytes for part in parts)
    return bool(rows >= SEGMENT_ROWS or size >= SEGMENT_BYTES)


def _stage(
    store: ObjectStore, spot: Spot, parts: list[pa.RecordBatch], rules: Rules, now: datetime
) -> Staged:
    rows = to_segment_rows(spot.channel, pa.Table.from_batches(parts), rules.of(spot.channel))
    positions = rows["position"]
    first, last = positions[0].as_py(), positions[-1].as_py()
    return Staged(spot, first, last, segments.stage(store, spot, rows, now))
