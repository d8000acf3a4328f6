"""Segments: rows of the WAL as compressed, checksummed Parquet files; rows are chosen by their names."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast import failpoints
from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal.batch import Segment
from holdfast.pipeline.wal.log import Wal

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


def row_names(rows: pa.Table) -> pa.ChunkedArray:
    """The name of each row: its place in the log, which names its failure, too (`Failure.name`)."""
    partition = rows["partition"].cast(pa.string())
    return pc.binary_join_element_wise(rows["channel"], partition, rows["position"], "@")


def healthy(wal: Wal, batch: str, rows: pa.Table) -> pa.Table:
    """The rows of a batch that have not failed."""
    failed = wal.left_out(batch)
    return rows.filter(pc.invert(pc.is_in(row_names(rows), pa.array(failed)))) if failed else rows


def rows_named(rows: pa.Table, wanted: Iterable[str]) -> pa.Table:
    """The rows of these names."""
    return rows.filter(pc.is_in(row_names(rows), pa.array(sorted(wanted), pa.string())))


def rows_without(rows: pa.Table, positions: set[str]) -> pa.Table:
    """The rows at other positions."""
    return rows.filter(pc.invert(pc.is_in(rows["position"], pa.array(sorted(positions)))))


def rows_at(rows: pa.Table, positions: set[str]) -> pa.Table:
    """The rows at these positions."""
    return rows.filter(pc.is_in(rows["position"], pa.array(sorted(positions))))


@dataclass(frozen=True)
class StoredRows:
    """The valid rows of some segments, not yet read: a load is handed on without them, and read where it is
    needed."""

    wal: str
    """The URL of its store."""
    segments: tuple[Segment, ...]
    without: frozenset[str] = frozenset()
    """Names of rows that have failed."""
    channels: frozenset[str] | None = None
    """Only rows of these; None for all."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def only(self, channels: frozenset[str]) -> StoredRows:
        """The rows of some channels."""
        return replace(self, channels=channels)

    def of(self, part: tuple[Segment, ...]) -> StoredRows:
        """The rows of some of the segments."""
        return replace(self, segments=part)

    def read(self) -> pa.Table:
        """The rows; `Damaged` where a segment is gone, torn or changed."""
        rows = read_all(open_store(self.wal, self.environment), self.segments)
        wanted = pc.is_null(rows["problem"])
        if self.without:
            wanted = pc.and_not(
                wanted, pc.is_in(row_names(rows), pa.array(sorted(self.without), pa.string()))
            )
        if self.channels is not None:
            wanted = pc.and_(wanted, pc.is_in(rows["channel"], pa.array(sorted(self.channels), pa.string())))
        return rows.filter(wanted)
