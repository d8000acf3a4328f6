"""Staging: rows of the source into segments of the WAL, many channels in one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import groupby
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.log import Page
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.validation import Rules, to_segment_rows
from holdfast.pipeline.offsets import Offsets, Spot, is_after
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
    """Neighbouring rows of one channel and store."""
    start = 0
    for spot, its in groupby(map(Spot, batch["partition"].to_pylist(), batch["channel"].to_pylist())):
        rows = sum(1 for _ in its)
        yield spot, batch.slice(start, rows)
        start += rows


def read_range(connection: Connection, spot: Spot, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
    """A range of the log, straight from its store."""
    pages = connection.backends[spot.partition].pages(spot.channel, after, until, _PAGE)
    return (to_batch(spot, page) for page in connection.iterate(cast("AsyncGenerator[Page]", pages)))


def _after(rows: pa.RecordBatch, position: str | None) -> pa.RecordBatch:
    """Rows of one page are in order, and mostly all of them are new."""
    if is_after(rows["position"][0].as_py(), position):
        return rows
    return rows.filter(pc.greater(rows["position"], position))


def _stage(
    store: ObjectStore,
    gathered: Mapping[Spot, list[pa.RecordBatch]],
    rules: Rules,
    starts: Offsets,
    now: datetime,
) -> Staged:
    parts = []
    for spot in sorted(gathered):
        batches = gathered[spot]
        first, last = batches[0]["position"][0].as_py(), batches[-1]["position"][-1].as_py()
        parts.append(Part(*spot, first, last, starts.get(spot), sum(each.num_rows for each in batches)))
    rows = pa.Table.from_batches([batch for part in parts for batch in gathered[part.spot]]).combine_chunks()
    return Staged(tuple(parts), segments.stage(store, to_segment_rows(rows, rules), now))
