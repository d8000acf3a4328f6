"""Staging: rows of the source, validated, into segments of the WAL, many channels in one. Spark's tasks do it
where they read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.log import Page
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.validation import ValidationRules, to_segment_rows
from holdfast.pipeline.offsets import ChannelPartition, Offsets, is_after
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import BatchPart, Segment, StagedSegment, segments
from holdfast.pipeline.wal.log import machine_time

if TYPE_CHECKING:
    from holdfast.pipeline.source import Known

SEGMENT_ROWS = 100_000
SEGMENT_BYTES = 64 << 20
_PAGE = 10_000
STAGED = "name string, sha256 string, rows long, bytes long, invalid long, parts string"
_SCHEMA = pa.schema(
    {
        "name": pa.string(),
        "sha256": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "invalid": pa.int64(),
        "parts": pa.string(),  # a JSON list
    }
)


def stage(
    store: ObjectStore,
    batches: Iterable[pa.RecordBatch],
    rules: ValidationRules,
    starts: Offsets,
    now: datetime,
) -> Iterator[StagedSegment]:
    """Write segments of what comes, without what `starts` has passed."""
    gathered: dict[ChannelPartition, list[pa.RecordBatch]] = {}
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


def split(batch: pa.RecordBatch) -> Iterator[tuple[ChannelPartition, pa.RecordBatch]]:
    """Neighbouring rows of one channel and store."""
    start = 0
    for spot, its in groupby(
        map(ChannelPartition, batch["partition"].to_pylist(), batch["channel"].to_pylist())
    ):
        rows = sum(1 for _ in its)
        yield spot, batch.slice(start, rows)
        start += rows


def read_range(
    connection: Connection, spot: ChannelPartition, after: str | None, until: str
) -> Iterator[pa.RecordBatch]:
    """A range of the log, straight from its store."""
    pages = connection.backends[spot.partition].log.pages(spot.channel, after, until, _PAGE)
    return (to_batch(spot, page) for page in connection.iterate(cast("AsyncGenerator[Page]", pages)))


def _after(rows: pa.RecordBatch, position: str | None) -> pa.RecordBatch:
    """Rows of one page are in order, and mostly all of them are new."""
    if is_after(rows["position"][0].as_py(), position):
        return rows
    return rows.filter(pc.greater(rows["position"], position))


def _stage(
    store: ObjectStore,
    gathered: Mapping[ChannelPartition, list[pa.RecordBatch]],
    rules: ValidationRules,
    starts: Offsets,
    now: datetime,
) -> StagedSegment:
    parts = []
    for spot in sorted(gathered):
        batches = gathered[spot]
        first, last = batches[0]["position"][0].as_py(), batches[-1]["position"][-1].as_py()
        parts.append(BatchPart(*spot, first, last, starts.get(spot), sum(each.num_rows for each in batches)))
    rows = pa.Table.from_batches([batch for part in parts for batch in gathered[part.spot]]).combine_chunks()
    return StagedSegment(tuple(parts), segments.stage(store, to_segment_rows(rows, rules), now))


@dataclass(frozen=True)
class StageSegments:
    """A task's rows in, a row for each segment out: what it holds, and the places after which it was read."""

    path: str
    environment: Mapping[str, str]
    rules: ValidationRules

    def __call__(self, batches: Iterable[pa.RecordBatch], known: Known) -> Iterator[pa.RecordBatch]:
        """Stage all of a task's rows that lie beyond the cursors."""
        store = open_store(self.path, self.environment)
        floors = {spot: cursor for spot, (cursor, _) in known.items()}
        staged = stage(store, batches, self.rules, floors, machine_time())
        rows = [to_row(each, known) for each in staged]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def to_row(staged: StagedSegment, known: Known) -> dict[str, Any]:
    """What a task reports to the driver."""
    parts = [tuple(part._replace(since=known[part.spot][1])) for part in staged.parts]
    return staged.segment._asdict() | {"parts": orjson.dumps(parts).decode()}


def from_row(row: Any) -> StagedSegment:
    """What the driver makes of it."""
    segment = Segment(row.name, row.sha256, row.rows, row.bytes, row.invalid)
    return StagedSegment(tuple(BatchPart(*part) for part in orjson.loads(row.parts)), segment)
