"""The files of Delta tables: where each table is, which files are live, how they are written, and that a
commit is durable.

`event_day` is the partition: the day of an event's time, in UTC. Days of which a commit has few rows (late
events) share one file without a day, so that old days do not make a file each; compaction takes them apart
once there are enough. The statistics in the log have the times of every file. Nobody sees a data file until a
commit adds it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from holdfast import failpoints
from holdfast.model.errors import Damaged, Unavailable
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.warehouse import damage
from holdfast.pipeline.warehouse.delta_index import Hashes
from holdfast.pipeline.warehouse.tables import DAY

_LOG = "_delta_log"
_BOUNDED = ("channel", "time")
"""Columns by whose statistics readers skip files."""
_RETENTION = {
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
    "delta.setTransactionRetentionDuration": "interval 30 days",
}
"""Of the log: entries that a checkpoint has, files that are gone, and keys of the ledger."""
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
_HASHES_KEPT = 4_000_000
"""Hashes of files that are kept in memory."""
_hash_cache: OrderedDict[tuple[str, str, str], Hashes] = OrderedDict()


class DeltaFiles:
    """Tables under a folder, or under `s3://bucket/prefix` with the environment's `AWS_…`."""

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/")
        self._is_folder = "://" not in root

    def names(self) -> list[str]:
        """The tables that are there."""
        if self._is_folder and not Path(self._root).is_dir():
            return []
        there = pyarrow.fs.PyFileSystem(DeltaStorageHandler(self._root, self._options()))
        entries = there.get_file_info(pyarrow.fs.FileSelector("", recursive=False))
        folders = [each.path for each in entries if each.type == pyarrow.fs.FileType.Directory]
        return sorted(name for name in folders if not name.startswith(("_", ".")) and self.find(name))

    def find(self, name: str) -> DeltaTable | None:
        """A table at its latest version. `Unavailable` where a commit in its log is damaged, by name."""
        try:
            return DeltaTable(self._uri(name), storage_options=self._options())
        except TableNotFoundError:
            return None
        except DeltaError as error:
            found = damage.of_log(Path(self._uri(name)) / _LOG) if self._is_folder else None
            if found is None:
                raise
            raise Unavailable(found) from error

    def open(self, name: str, schema: pa.Schema, partition: str | None = None) -> DeltaTable:
        """A table at its latest version, made if it is not there."""
        found = self.find(name)
        if found is not None:
            return found
        if self._is_folder:
            Path(self._root).mkdir(parents=True, exist_ok=True)
        made = DeltaTable.create(
            self._uri(name),
            schema,
            mode="ignore",
            partition_by=partition,
            configuration=_RETENTION,
            storage_options=self._options(),
        )
        self.sync_commits(name, -1)
        return made

    def dataset(self, name: str, delta: DeltaTable, files: pa.Table) -> ds.Dataset:
        """The rows of some of the live files.

        Not deltalake's own: its statistics of text are of a type that Arrow cannot compare with text, once
        some of its own writers had a hand in the table.
        """
        schema = pa.schema(delta.schema().to_arrow())
        paths, sizes = files["path"].to_pylist(), files["size_bytes"].to_pylist()
        handler = DeltaStorageHandler(self._uri(name), self._options(), dict(zip(paths, sizes, strict=True)))
        filesystem, parquet = pyarrow.fs.PyFileSystem(handler), ds.ParquetFileFormat()
        fragments = [
            parquet.make_fragment(each["path"], filesystem, partition_expression=_known_of(each))
            for each in files.to_pylist()
        ]
        return ds.FileSystemDataset(fragments, schema, parquet, filesystem)

    def sync_commits(self, name: str, after: int) -> None:
        """Sync the commits after a version, and their files: deltalake does not. On S3 they are durable."""
        if not self._is_folder:
            return
        folder = Path(self._uri(name))
        commit = folder / _LOG / f"{after + 1:020}.json"
        while commit.exists():
            for added in _added(commit):
                _sync(folder / added)
                _sync((folder / added).parent)
            _sync(commit)
            after += 1
            commit = folder / _LOG / f"{after + 1:020}.json"
        for each in (folder / _LOG, folder, folder.parent):
            _sync(each)

    def last_checkpoint(self, name: str) -> int:
        """The version of the log's last checkpoint; -1 where there is none."""
        delta = self.find(name)
        if delta is None:
            return -1
        try:
            handler = DeltaStorageHandler(self._uri(name), self._options())
            with pyarrow.fs.PyFileSystem(handler).open_input_file(f"{_LOG}/_last_checkpoint") as file:
                return int(orjson.loads(file.read())["version"])
        except FileNotFoundError:
            return -1

    def sync_checkpoint(self, name: str, version: int) -> None:
        """Sync a checkpoint of the log."""
        if self._is_folder:
            folder = Path(self._uri(name)) / _LOG
            for each in (*folder.glob(f"{version:020}.checkpoint*"), folder / "_last_checkpoint", folder):
                _sync(each)

    def _uri(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _options(self) -> dict[str, str] | None:
        if self._is_folder:
            return None
        options = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        plain = options.get("AWS_ENDPOINT_URL", "").startswith("http://")
        # A commit is a put that fails where the version exists: that is what keeps two writers apart.
        return options | {"AWS_CONDITIONAL_PUT": "etag"} | ({"AWS_ALLOW_HTTP": "true"} if plain else {})


def live_files(delta: DeltaTable) -> pa.Table:
    """The files of a version: `path`, `size_bytes`, `num_records`, and `min.…` and `max.…` of columns."""
    return without_views(pa.table(delta.get_add_actions(flatten=True)))


def without_views(rows: pa.Table) -> pa.Table:
    """With plain text in place of deltalake's views of text, which Arrow can hardly compute with."""
    if pa.string_view() not in rows.schema.types:
        return rows
    fields = [each.with_type(pa.string()) if each.type == pa.string_view() else each for each in rows.schema]
    return rows.cast(pa.schema(fields))


def between(files: pa.Table, column: str, low: object, high: object) -> pc.Expression:
    """Which files may have values from `low` to `high`. One without statistics may have any."""
    if f"min.{column}" not in files.column_names:
        return pc.scalar(True)
    least, most = pc.field(f"min.{column}"), pc.field(f"max.{column}")
    return (least.is_null() | (least <= high)) & (most.is_null() | (most >= low))


def _known_of(file: Mapping[str, Any]) -> ds.Expression:
    """What holds for all rows of a file, so that a reader who wants others skips it."""
    known = ds.scalar(True)
    if (day := file.get(f"partition.{DAY}")) is not None:
        known = known & (ds.field(DAY) == day)
    for name in _BOUNDED:
        low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
        if low is not None and high is not None:
            known = known & (ds.field(name) >= low) & (ds.field(name) <= high)
    return known


def _added(commit: Path) -> list[str]:
    actions = [orjson.loads(line) for line in commit.read_bytes().splitlines()]
    return [action["add"]["path"] for action in actions if "add" in action]


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # compacted or vacuumed by somebody since
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StagedFile(NamedTuple):
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


def stage(store: ObjectStore, table: str, rows: pa.Table) -> list[StagedFile]:
    """Write rows of a table's columns as files."""
    return [
        _write(store, table, f"{DAY}={text or _NO_DAY}/", text, part)
        for day, part in by_day(rows)
        for text in (None if day is None else day.isoformat(),)
    ]


def stage_whole(store: ObjectStore, table: str, rows: pa.Table) -> list[StagedFile]:
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
    found = _hash_cache.pop(key, None)
    if found is None:
        with store.reader(f"{table}/{path}") as file:
            column = pq.ParquetFile(file).read(["transaction_hash"])["transaction_hash"]
        found = np.asarray(column.to_numpy(), np.int64)
    _hash_cache[key] = found
    while sum(map(len, _hash_cache.values())) > _HASHES_KEPT and len(_hash_cache) > 1:
        _hash_cache.popitem(last=False)
    return found


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


def discard(store: ObjectStore, table: str, staged: Iterable[StagedFile]) -> None:
    """Remove files that will be in no commit."""
    for each in staged:
        store.delete(f"{table}/{each.path}")


def _write(store: ObjectStore, table: str, folder: str, day: str | None, rows: pa.Table) -> StagedFile:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd", row_group_size=ROW_GROUP)
    data = sink.getvalue().to_pybytes()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = f"{folder}{stamp}-{secrets.token_hex(12)}.parquet"
    store.put(f"{table}/{path}", data)
    failpoints.hit("delta.after_stage")
    return StagedFile(path, len(data), day, rows.num_rows, _statistics(rows))


def _statistics(rows: pa.Table) -> str:
    lows, highs = {}, {}
    for name in set(_DESCRIBED).intersection(rows.column_names):
        found = pc.min_max(rows[name])
        low, high = found["min"].as_py(), found["max"].as_py()
        if isinstance(low, str) and max(len(low), len(high)) > _LONGEST:
            continue  # a part of it would be no bound
        lows[name], highs[name] = _json_value(low), _json_value(high)
    nulls = {name: rows[name].null_count for name in rows.column_names}
    body = {"numRecords": rows.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return orjson.dumps(body).decode()


def _json_value(value: object) -> object:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value
