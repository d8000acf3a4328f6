"""Segments: rows of the WAL as a compressed, checksummed Parquet file."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast import failpoints
from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal.batch import Segment

FOLDER = "segments"
STAMP = "%Y%m%dT%H%M%SZ"

SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "channel": pa.string(),
        "position": pa.string(),
        "id": pa.string(),
        "source": pa.string(),
        "type": pa.string(),
        "key": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "headers": pa.string(),  # a JSON object
        "data": pa.string(),  # JSON; null where it is not
        "data_base64": pa.string(),  # only where data is not JSON
        "transaction_id": pa.string(),
        "transaction_hash": pa.int64(),  # the first 64 bits of it
        "problem": pa.string(),  # why it is not valid; null where it is
    }
)


def stage(store: ObjectStore, rows: pa.Table, now: datetime) -> Segment:
    """Write rows under a name of their own. Nobody sees them until a batch names the segment."""
    data = encode(rows)
    name = f"{FOLDER}/{now.strftime(STAMP)}-{secrets.token_hex(12)}.parquet"
    store.put(name, data)
    failpoints.hit("wal.after_stage")
    invalid = rows.num_rows - rows["problem"].null_count
    return Segment(name, hashlib.sha256(data).hexdigest(), rows.num_rows, len(data), invalid)


def encode(rows: pa.Table) -> bytes:
    """Rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    # Ids are all different: a dictionary of them costs time and saves nothing.
    repeated = ["partition", "channel", "source", "type", "headers", "problem"]
    pq.write_table(rows.cast(SCHEMA), sink, compression="zstd", compression_level=1, use_dictionary=repeated)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read(store: ObjectStore, segment: Segment) -> pa.Table:
    """The rows of a segment; `Damaged` where it is gone, torn or changed."""
    try:
        data = store.get(segment.name)
    except NotFound:
        raise Damaged(f"segment {segment.name} is missing") from None
    if len(data) != segment.bytes:
        raise Damaged(f"segment {segment.name} has {len(data)} bytes instead of {segment.bytes}: it is torn")
    found = hashlib.sha256(data).hexdigest()
    if found != segment.sha256:
        raise Damaged(f"segment {segment.name} has the checksum {found} instead of {segment.sha256}")
    try:
        rows: pa.Table = pq.read_table(pa.BufferReader(data))
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"segment {segment.name} has its checksum, and is no Parquet file: {error}") from None
    if not rows.schema.equals(SCHEMA) or rows.num_rows != segment.rows:
        raise Damaged(
            f"segment {segment.name} has its checksum, and {rows.num_rows} rows of {rows.schema.names} "
            f"instead of {segment.rows} rows of this version"
        )
    return rows


def places(store: ObjectStore, segment: Segment) -> pa.Table:
    """Partition, channel and position of the rows of a segment, without reading the others; `Damaged` where
    that cannot be done. The checksum is not compared: only `read` proves that a row is as it was."""
    try:
        with store.reader(segment.name) as file:
            rows: pa.Table = pq.read_table(file, columns=["partition", "channel", "position"])
    except NotFound:
        raise Damaged(f"segment {segment.name} is missing") from None
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"segment {segment.name} cannot be read: {error}") from None
    if rows.num_rows != segment.rows:
        raise Damaged(f"segment {segment.name} has {rows.num_rows} rows instead of {segment.rows}")
    return rows


def read_all(store: ObjectStore, segments: Iterable[Segment]) -> pa.Table:
    """The rows of a batch, in the order of its segments, which is that of the log."""
    return pa.concat_tables([read(store, segment) for segment in segments])
