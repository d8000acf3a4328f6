"""Scratch: rows from one engine for another, as files in a store that the driver and the executors share."""

from __future__ import annotations

import io
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.pipeline.stores import ObjectStore, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FOLDER = "scratch"
_STAMP = "%Y%m%dT%H%M%SZ"
_STALE = timedelta(days=1)


@contextmanager
def scratch(
    spark: SparkSession,
    path: str,
    environment: Mapping[str, str],
    rows: Iterable[pa.RecordBatch],
    columns: str,
) -> Iterator[DataFrame]:
    """Rows as a frame, for the length of a block. `path` is the store, `columns` Spark's schema of them."""
    store = open_store(path)
    _remove_stale(store)
    folder = f"{FOLDER}/{datetime.now(UTC).strftime(_STAMP)}-{secrets.token_hex(8)}"
    names: list[str] = []
    try:
        for batch in rows:
            names.append(f"{folder}/{len(names):06}.parquet")
            store.put(names[-1], _encode(batch))
        frame = spark.createDataFrame([(name,) for name in names], "name string")
        yield frame.repartition(max(1, len(names))).mapInArrow(ReadScratch(path, environment), columns)
    finally:
        for name in names:
            store.delete(name)


@dataclass(frozen=True)
class ReadScratch:
    """For `mapInArrow`: names of files in, their rows out."""

    path: str
    environment: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files of a task."""
        store = open_store(self.path, self.environment)
        for batch in batches:
            for name in batch["name"].to_pylist():
                yield from pq.read_table(io.BytesIO(store.get(name))).to_batches()


def _encode(batch: pa.RecordBatch) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), buffer, compression="zstd", compression_level=1)
    return buffer.getvalue()


def _remove_stale(store: ObjectStore) -> None:
    """What jobs that were killed have left, a day ago or earlier."""
    limit = (datetime.now(UTC) - _STALE).strftime(_STAMP)
    for entry in store.list(FOLDER):
        if entry.name.split("/")[1] < limit:
            store.delete(entry.name)
