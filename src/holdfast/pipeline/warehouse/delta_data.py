"""The data files of a Delta table: rows by day as Parquet. Nobody sees them until a commit adds them.

`event_day` is the partition: the day of an event's time, in UTC. Days of which a commit has few rows (late
events) share one file without a day, so that old days do not make a file each; compaction takes them apart
once there are enough. The statistics in the log have the times of every file.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import PostCommitHookProperties
from deltalake.transaction import AddAction, RemoveAction

from holdfast import failpoints
from holdfast.model.errors import Damaged
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.warehouse.delta_files import without_views
from holdfast.pipeline.warehouse.delta_index import Hashes
from holdfast.pipeline.warehouse.tables import DAY

SHARE = 8
"""A day gets a file of its own where it has at least one in so many of the rows."""
ROW_GROUP = 50_000
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""For a commit that waits for nothing: upkeep writes the log's checkpoints, and syncs them."""
_NO_DAY = "__HIVE_DEFAULT_PARTITION__"
_DESCRIBED = ("channel", "partition", "position", "id", "time", "transaction_hash", "ingested_at")
"""Columns with statistics in the log."""
_LONGEST = 128
"""Characters of a text in the statistics."""
_KEPT = 4_000_000
"""Hashes of files that are kept in memory."""


class Staged(NamedTuple):
    """A data file that is durable, and in no commit."""

    path: str
    """Within the table."""
    size: int
    day: str | None
    rows: int
    stats: str

    def added(self, *, data_change: bool = True) -> AddAction:
        """As an action of a commit."""
        now, partition = int(time.time() * 1000), {DAY: self.day} if self.path.startswith(DAY) else {}
        return AddAction(self.path, self.size, partition, now, data_change, self.stats)


def stage(store: ObjectStore, table: str, rows: pa.Table) -> list[Staged]:
    """Write rows of a table's columns as files."""
    return [
        _write(store, table, f"{DAY}={text or _NO_DAY}/", text, part)
        for day, part in by_day(rows)
        for text in (None if day is None else day.isoformat(),)
    ]


def stage_whole(store: ObjectStore, table: str, rows: pa.Table) -> list[Staged]:
    """Write rows of a table without partitions as one file."""
    return [_write(store, table, "", None, rows)]


def by_day(rows: pa.Table) -> Iterator[tuple[date | None, pa.Table]]:
    """Rows with their day; those of small days together, without one. The day itself is in no file."""
    if not rows.num_rows:
        return
    days = pc.cast(pc.floor_temporal(rows["time"], unit="day"), pa.timestamp("us")).cast(pa.date32())
    counts = {each["values"].as_py(): each["counts"].as_py() for each in pc.value_counts(days)}
    large = sorted(day for day, count in counts.items() if count * SHARE >= rows.num_rows)
    for day in large:
        yield day, rows if len(counts) == 1 else rows.filter(pc.equal(days, day))
    if len(large) < len(counts):
        yield None, rows.filter(pc.invert(pc.is_in(days, pa.array(large, pa.date32()))))


def read_hashes(store: ObjectStore, table: str, path: str) -> Hashes:
    """The transaction hashes of a file. Those of the last ones are kept: a file does not change."""
    key = (store.url, table, path)
    found = _known.pop(key, None)
    if found is None:
        with store.reader(f"{table}/{path}") as file:
            column = pq.ParquetFile(file).read(["transaction_hash"])["transaction_hash"]
        found = np.asarray(column.to_numpy(), np.int64)
    _known[key] = found
    while sum(map(len, _known.values())) > _KEPT and len(_known) > 1:
        _known.popitem(last=False)
    return found


_known: OrderedDict[tuple[str, str, str], Hashes] = OrderedDict()


def read_rows(
    store: ObjectStore, table: str, path: str, hashes: Hashes, columns: list[str]
) -> Iterator[pa.Table]:
    """Rows of a file with one of these hashes: only the row groups that have one are read."""
    with store.reader(f"{table}/{path}") as file:
        parquet = pq.ParquetFile(file)
        wanted = pa.array(hashes, pa.int64())
        for group in range(parquet.num_row_groups):
            held = pc.is_in(parquet.read_row_group(group, ["transaction_hash"])["transaction_hash"], wanted)
            if pc.any(held).as_py():
                yield without_views(parquet.read_row_group(group, columns)).filter(held)


def read_file(store: ObjectStore, table: str, path: str, size: int) -> pa.Table:
    """A file whole."""
    data = store.get(f"{table}/{path}")
    if len(data) != size:
        raise Damaged(f"{store.url}/{table}/{path} has {len(data)} bytes, and the log says {size}")
    return without_views(pq.read_table(pa.BufferReader(data), partitioning=None))


def removal(file: Mapping[str, Any], *, data_change: bool = True) -> RemoveAction:
    """That a live file is no longer one, as an action of a commit."""
    day = file.get(f"partition.{DAY}")
    values: dict[str, str | None] = {DAY: day and day.isoformat()} if f"partition.{DAY}" in file else {}
    now = int(time.time() * 1000)
    return RemoveAction(file["path"], data_change, now, file["size_bytes"], values)


def discard(store: ObjectStore, table: str, staged: Iterable[Staged]) -> None:
    """Remove files that will be in no commit."""
    for each in staged:
        store.delete(f"{table}/{each.path}")


def _write(store: ObjectStore, table: str, folder: str, day: str | None, rows: pa.Table) -> Staged:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=ROW_GROUP)
    data = sink.getvalue().to_pybytes()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = f"{folder}{stamp}-{secrets.token_hex(12)}.parquet"
    store.put(f"{table}/{path}", data)
    failpoints.hit("delta.after_stage")
    return Staged(path, len(data), day, rows.num_rows, _statistics(rows))


def _statistics(rows: pa.Table) -> str:
    lows, highs = {}, {}
    for name in set(_DESCRIBED).intersection(rows.column_names):
        found = pc.min_max(rows[name])
        low, high = found["min"].as_py(), found["max"].as_py()
        if isinstance(low, str) and max(len(low), len(high)) > _LONGEST:
            continue  # a part of it would be no bound
        lows[name], highs[name] = _plain(low), _plain(high)
    nulls = {name: rows[name].null_count for name in rows.column_names}
    body = {"numRecords": rows.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return orjson.dumps(body).decode()


def _plain(value: object) -> object:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
