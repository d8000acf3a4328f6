"""What runs in Spark's tasks: rows are validated and staged where they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.pipeline.ingest.commit import Staged
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.offsets import Offsets, Spot
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Segment
from holdfast.pipeline.wal.log import machine_time

STAGED = (
    "partition int, channel string, first string, last string, name string, sha256 string, rows long, "
    "bytes long, after string"
)
_SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "channel": pa.string(),
        "first": pa.string(),
        "last": pa.string(),
        "name": pa.string(),
        "sha256": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "after": pa.string(),
    }
)


@dataclass(frozen=True)
class StageSegments:
    """A task's rows in, a row for each segment out: what it holds, and the place after which it was read."""

    path: str
    environment: Mapping[str, str]
    rules: Rules

    def __call__(self, batches: Iterable[pa.RecordBatch], floors: Offsets) -> Iterator[pa.RecordBatch]:
        """Stage all of a task's rows that lie beyond the floors."""
        store = open_store(self.path, self.environment)
        staged = stage(store, batches, self.rules, floors, machine_time())
        rows = [to_row(each, floors.get(each.spot)) for each in staged]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def to_row(staged: Staged, after: str | None) -> dict[str, Any]:
    """What a task reports to the driver."""
    place = {"partition": staged.spot.partition, "channel": staged.spot.channel, "after": after}
    return place | {"first": staged.first, "last": staged.last} | staged.segment._asdict()


def from_row(row: Any) -> Staged:
    """What the driver makes of it."""
    segment = Segment(row.name, row.sha256, row.rows, row.bytes)
    return Staged(Spot(row.partition, row.channel), row.first, row.last, segment)
