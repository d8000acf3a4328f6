"""The files of Delta tables: where each table is, what is live in it, and that a commit is durable."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from holdfast.model.errors import Unavailable
from holdfast.pipeline.warehouse import damage
from holdfast.pipeline.warehouse.tables import DAY

_LOG = "_delta_log"
_BOUNDED = ("channel", "time")
"""Columns by whose statistics readers skip files."""
_KEPT = {
    "delta.logRetentionDuration": "interval 2 days",
    "delta.deletedFileRetentionDuration": "interval 2 days",
    "delta.setTransactionRetentionDuration": "interval 30 days",
}
"""Of the log: entries that a checkpoint has, files that are gone, and keys of the ledger."""


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
            configuration=_KEPT,
            storage_options=self._options(),
        )
        self.settle(name, -1)
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

    def settle(self, name: str, after: int) -> None:
        """Have commits after a version survive a power failure. On S3 they do; deltalake syncs nothing."""
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
        """Have a checkpoint survive a power failure."""
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
