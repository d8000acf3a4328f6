"""What runs in Spark's tasks: a task reads its share of the log and writes the objects itself.

So events never pass through the JVM, which would cost more than all the rest; what Spark carries is a row for
each object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.reader import Known
from holdfast.pipeline.stores import open_store

WRITTEN = (
    "object string, channel string, partition int, first string, last string, rows long, bytes long, "
    "sha256 string, after string"
)
_SCHEMA = pa.schema(
    {
        "object": pa.string(),
        "channel": pa.string(),
        "partition": pa.int32(),
        "first": pa.string(),
        "last": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "sha256": pa.string(),
        "after": pa.string(),
    }
)


@dataclass(frozen=True)
class WriteObjects:
    """A task's rows in, a row for each object out: what it holds, and the cursor that it was written for."""

    destination: str
    environment: Mapping[str, str]
    batch_size: int

    def __call__(self, batches: Iterable[pa.RecordBatch], known: Known) -> Iterator[pa.RecordBatch]:
        """Write all of a task's rows that lie beyond the cursors."""
        store = open_store(self.destination, self.environment)
        floors = {spot: cursor for spot, (cursor, _) in known.items()}
        written = [
            (*each, floors.get(each.spot))
            for each in ObjectWriter(store, self.batch_size, floors).write(batches)
        ]
        if written:
            columns = zip(zip(*written, strict=True), _SCHEMA.types, strict=True)
            arrays = [pa.array(column, kind) for column, kind in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
