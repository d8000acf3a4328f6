"""What a warehouse must do, which kinds there are, and how one is opened by its URL.

Its verbs are called from one thread at a time. `Transient` (`Unavailable` and the like) means: the same call
may succeed later. `Terminal` means that some row can never go in; nothing was changed.
A load whose result was lost is repeated with the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.model.errors import InvalidInput
from holdfast.model.redact import mask
from holdfast.pipeline.warehouse.tables import Tables

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.pipeline.offsets import ChannelPartition
    from holdfast.pipeline.wal.segments import StoredRows
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep
    from holdfast.pipeline.warehouse.loads import TaskRunner

Status = Literal["pending", "retrying", "resolved", "abandoned"]


class LoadOutcome(NamedTuple):
    """The ledger's entry for a key."""

    inserted: int
    duplicates: int
    """Rows whose event was there before, with the same content."""
    conflicts: tuple[str, ...]
    """Names (`wal.segments.row_names`) of rows that did not go in: their id is there with other content."""
    refused: str | None = None
    """Why nothing of this key will ever be loaded; None where it was."""


class Load(NamedTuple):
    """Rows that go in under one key of the ledger."""

    key: str
    """The name of a batch; for one record of it that is tried again, `#` and what tells the tries apart."""
    channels: tuple[str, ...]
    """Those of the batch, also where no row of one is left."""
    rows: pa.Table | StoredRows
    """As `wal.segments.SCHEMA` has them; where `Warehouse.reads_segments`, also rows that are in the WAL."""

    @property
    def table(self) -> pa.Table:
        """The rows, read now where they are not at hand."""
        rows = self.rows
        return rows.read() if hasattr(rows, "read") else rows

    @property
    def batch(self) -> str:
        """What the column `batch` says."""
        return self.key.partition("#")[0]


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """A row of `failed_events`."""

    id: str
    transaction_id: str
    event_id: str
    session_key: str | None
    correlation_key: str | None
    source: str
    event_payload: str
    """JSON; bytes that are no JSON stand in it as `data_base64`."""
    failed_at: datetime
    failure_reason: str
    """`expired`, `max_retries_exceeded`, `conflict`, `invalid`, `rejected`."""
    failure_layer: str
    """`consumer_wal`, `duckdb_insert` (or another warehouse's), `validation`."""
    last_error: str | None
    retry_count: int
    last_retry_at: datetime | None
    max_retries_exceeded: bool
    status: Status
    resolved_at: datetime | None
    resolved_by: str | None
    resolution_notes: str | None
    created_at: datetime
    updated_at: datetime
    channel: str
    partition: int
    position: str
    batch: str


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event in the warehouse, without its data."""

    channel: str
    partition: int
    position: str
    source: str
    id: str
    transaction_id: str
    time: datetime
    ingested_at: datetime
    batch: str


class Warehouse(Protocol):
    """One warehouse. Connects when it is first used, and again after `close`."""

    url: str
    layer: str
    """What `failure_layer` says of rows that it does not take."""
    reads_segments: bool
    """Whether a load's rows may still be in the WAL."""

    def load(self, loads: Sequence[Load]) -> list[LoadOutcome]:
        """Put the rows of all loads and their entries in the ledger in, in one transaction for each table;
        returns the outcomes in their order.

        A key that the ledger knows changes nothing and has the outcome from then. Rows of events that are
        there, or in an earlier load, by the whole transaction id, do not go in again. `Terminal` where one
        row of any load cannot go in: nothing is changed. Where a table's transaction fails, those of other
        tables may be in; the same call again goes on from there.
        """

    def rehearse(self, rows: pa.Table) -> None:
        """Check whether the rows could go in, and change nothing. Raises `Terminal` where one cannot."""

    def refuse(self, key: str, channels: Sequence[str], reason: str) -> LoadOutcome:
        """Write into the ledger that `key`, with these channels, is not to be loaded, so that a loader that
        is late cannot.

        Where the ledger knows the key, nothing is changed and the outcome is the one from then.
        """

    def outcome(self, key: str, channels: Sequence[str]) -> LoadOutcome | None:
        """What the ledger says of a key with these channels; None where it does not know all of it."""

    def replace(self, batch: str, spot: ChannelPartition, positions: Sequence[str], rows: pa.Table) -> int:
        """Remove what stands at these positions of a channel and partition, and put rows of that batch
        there, in one transaction; returns how many were removed.

        The ledger is neither asked nor changed. To repeat it changes nothing.
        """

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        """Write rows of `failed_events`, over those of the same ids."""

    def failed(self, status: Status | None = None, limit: int = 1000) -> list[FailedEvent]:
        """Rows of `failed_events`, the last to fail first."""

    def events(self, channel: str, day: date | None = None) -> Iterator[pa.RecordBatch]:
        """Which events of a channel are there: partition, position, transaction_id, source, id, and the
        digest of their content as it stands there. With a day: those whose time is within it, in UTC."""

    def holds(self, channel: str, transaction_ids: Sequence[str]) -> set[str]:
        """Those of these events that are there."""

    def find(self, event_id: str, channels: Sequence[str]) -> list[StoredEvent]:
        """The rows of an event, whatever its source, in these channels."""

    def close(self) -> None:
        """Let go of it, so that others can read."""


class Location(NamedTuple):
    """Where a warehouse is: a DuckDB file, or the root of Delta tables (a folder, or `s3://bucket/prefix`)."""

    kind: Literal["duckdb", "delta"]
    path: str


def location_of(url: str) -> Location:
    """`duckdb:///absolute/path.duckdb` or `duckdb://relative/path.duckdb`; `delta:///folder` likewise, or
    `delta+s3://bucket/prefix`."""
    parts = urlsplit(url)
    path = unquote(parts.netloc + parts.path)
    match parts.scheme:
        case "duckdb" if path:
            return Location("duckdb", path)
        case "delta" if path:
            return Location("delta", str(Path(path).expanduser().resolve()))
        case "delta+s3" if parts.netloc:
            return Location("delta", f"s3://{path.rstrip('/')}")
    raise InvalidInput(
        f"no warehouse for the URL {mask(url)!r}; write duckdb:///path/to/warehouse.duckdb, "
        "delta:///path/to/folder or delta+s3://bucket/prefix"
    )


def open_warehouse(url: str, tables: Tables, run_tasks: TaskRunner | None = None) -> Warehouse:
    """The warehouse of a URL, as `location_of` reads it. With `run_tasks`, large loads into Delta are done by
    it, in parts. It is opened when it is first used."""
    kind, path = location_of(url)
    if kind == "duckdb":
        from holdfast.pipeline.warehouse.duck import DuckWarehouse

        return DuckWarehouse(Path(path), tables)
    from holdfast.pipeline.warehouse.delta import DeltaWarehouse
    from holdfast.pipeline.warehouse.loads import run_in_place

    return DeltaWarehouse(path, tables, run_tasks or run_in_place)


def upkeep_of(url: str, file_size: int, keep: timedelta) -> list[TableUpkeep]:
    """The upkeep of each table that is there now. A DuckDB file needs none."""
    kind, root = location_of(url)
    if kind != "delta":
        return []
    from holdfast.pipeline.stores import open_store
    from holdfast.pipeline.warehouse.delta_files import DeltaFiles
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep

    files, store = DeltaFiles(root), open_store(root)
    return [TableUpkeep(files, store, name, file_size, keep) for name in files.names()]
