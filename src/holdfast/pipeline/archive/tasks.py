"""What runs in Spark's tasks: objects are written where the rows are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from holdfast.pipeline.archive.writer import Floors, ObjectWriter
from holdfast.pipeline.stores import open_store

WRITTEN = (
    "object string, channel string, partition int, first string, last string, rows long, bytes long, "
    "sha256 string"
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
    }
)


@dataclass(frozen=True)
class WriteObjects:
    """For `mapInArrow`: the source's rows in, a row for each object out."""

    destination: str
    environment: Mapping[str, str]
    batch_size: int
    floors: Floors

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all of a task's rows."""
        store = open_store(self.destination, self.environment)
        written = list(ObjectWriter(store, self.batch_size, self.floors).write(batches))
        if written:
            columns = [pa.array(column, kind.type) for column, kind in zip(zip(*written), _SCHEMA)]  # noqa: B905
            yield pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
