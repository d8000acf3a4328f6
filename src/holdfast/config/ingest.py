"""The section of the ingest: channels, WAL, warehouse, columns, validation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, model_validator

from holdfast.config.sections import Compaction, Section
from holdfast.config.values import Address, Batch, Pattern, Port, Positive, Size


class MappedColumn(Section):
    """A part of the JSON data as a column. A type alone takes the field of the column's own name."""

    path: str | None = None
    """Where it stands: `$.user.name`, `$.items[0]`. Default: the field of the column's name."""
    type: str = "text"
    """`text`, `integer`, `number`, `boolean`, `time`, `date`, `json` or `decimal(18,3)`."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value


class MappedTable(Section):
    """The table of some channels."""

    table: str = "events"
    """Its name. `{channel}` in it makes one table for each channel."""
    columns: dict[str, MappedColumn] = Field(default_factory=dict)
    """Columns besides those that every table has. One that is new here is added to the table."""


class Validation(Section):
    """What the data of some channels must be."""

    payload: Literal["json", "any"] = "json"
    """`any` also takes bytes that are no JSON; they go into `data_base64`."""
    required: list[str] = Field(default_factory=list)
    """Fields that the JSON object must have."""
    schema_file: str | None = None
    """A file with a JSON Schema."""


class WalKnobs(Section):
    """The WAL between the channels and the warehouse. `CONSUMER_WAL_PATH` is another name for the variable of
    `path`, and so on; it goes first."""

    path: Address = ".holdfast/wal"
    """A folder or `s3://bucket/prefix`."""
    retry_interval: Positive = timedelta(seconds=30)
    """How often the loader looks for batches that are due."""
    max_retries: Batch = 100
    """Attempts after which a batch has failed."""
    retry_backoff: Positive = timedelta(seconds=5)
    """The wait after a first failure; it doubles."""
    max_backoff: Positive = timedelta(minutes=5)
    """The longest wait between two attempts."""
    entry_ttl: Positive = timedelta(hours=168)
    """What the warehouse did not take for so long has failed, as `expired`."""
    close_timeout: Positive = timedelta(seconds=30)
    """How long the loader gets to finish its batch at the end."""
    lease_duration: Positive = timedelta(minutes=2)
    """How long others leave a batch to a loader that is silent; at least 30s."""
    confirmed_retention: Positive = timedelta(hours=24)
    """How long a batch stays in the WAL after it was loaded."""
    max_bytes: Size = 10 << 30
    """The ingest waits while so much is pending."""


class FlushKnobs(Section):
    """When the events of all channels that wait become one batch, whichever comes first."""

    rows: Batch = 50_000
    """So many events wait."""
    bytes: Size = 32 << 20
    """So much data waits, about."""
    every: Positive = timedelta(seconds=10)
    """The oldest has waited for so long."""


class Ingest(Section):
    """What goes into the warehouse."""

    channels: list[Pattern] = Field(default_factory=list)
    """The channels. With neither a file nor a store: all, whatever their data."""
    warehouse: Address = "duckdb://.holdfast/warehouse.duckdb"
    """`duckdb:///path/to/file.duckdb`, `delta:///path/to/folder` or `delta+s3://bucket/prefix`."""
    batch_rows: Batch = 250_000
    """Events of one batch, at most."""
    flush: FlushKnobs = Field(default_factory=FlushKnobs)
    freshness: Positive = timedelta(minutes=15)
    """An event without a row for longer raises an alert, and `/readyz` fails."""
    metrics_port: Port | None = None
    """Where the driver answers Prometheus. Without it, nowhere."""
    wal: WalKnobs = Field(default_factory=WalKnobs)
    compaction: Compaction = Field(default_factory=Compaction)
    tables: dict[Pattern, MappedTable] = Field(default_factory=dict)
    """By pattern; the most specific one decides. A channel that none selects goes into `events`."""
    validation: dict[Pattern, Validation] = Field(default_factory=dict)
    """By pattern; the most specific one decides. Where none does, the data must be JSON."""
