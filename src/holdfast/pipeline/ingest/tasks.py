"""What runs in Spark's tasks: rows are validated and staged where they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.reader import Known
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Part, Segment, Staged
from holdfast.pipeline.wal.log import machine_time

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


@dataclass(frozen=True)
class StageSegments:
    """A task's rows in, a row for each segment out: what it holds, and the places after which it was read."""

    path: str
    environment: Mapping[str, str]
    rules: Rules

    def __call__(self, batches: Iterable[pa.RecordBatch], known: Known) -> Iterator[pa.RecordBatch]:
        """Stage all of a task's rows that lie beyond the cursors."""
        store = open_store(self.path, self.environment)
        floors = {spot: cursor for spot, (cursor, _) in known.items()}
        staged = stage(store, batches, self.rules, floors, machine_time())
        rows = [to_row(each, known) for each in staged]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, _SCHEMA)


def to_row(staged: Staged, known: Known) -> dict[str, Any]:
    """What a task reports to the driver."""
    parts = [tuple(part._replace(since=known[part.spot][1])) for part in staged.parts]
    return staged.segment._asdict() | {"parts": orjson.dumps(parts).decode()}


def from_row(row: Any) -> Staged:
    """What the driver makes of it."""
    segment = Segment(row.name, row.sha256, row.rows, row.bytes, row.invalid)
    return Staged(tuple(Part(*part) for part in orjson.loads(row.parts)), segment)
