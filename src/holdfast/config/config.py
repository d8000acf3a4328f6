"""The sections of the configuration file. The text under a key is what the reference says about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from holdfast.config.values import (
    Address,
    Batch,
    Count,
    Destination,
    Namespace,
    Network,
    Pattern,
    Port,
    Positive,
    Size,
    TaskName,
    Urls,
)
from holdfast.model.errors import InvalidInput


class Section(BaseModel):
    """What all of them share: no unknown keys, no changes, and an empty one is one of defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_under_it(cls, value: Any, info: ValidationInfo) -> Any:
        default = cls.model_fields[info.field_name or ""].get_default(call_default_factory=True)
        return default if value is None and isinstance(default, Section | dict | list) else value


class DeadConsumersSection(Section):
    """Foreign Redis or NATS groups whose members are gone."""

    alive: Positive = timedelta(minutes=5)
    """A member that was seen within this time is living."""
    after: Positive = timedelta(days=7)
    """A group with pending entries and without a living member for so long is dead."""
    action: Literal["report", "remove"] = "report"
    """What becomes of a dead group. One that guards a channel is never removed."""


class LagSection(Section):
    """How far behind a stream consumer may be before there is an alert."""

    events: Count = 10_000
    """Events that it has not read."""
    age: Positive = timedelta(hours=1)
    """Age of the oldest of them."""


class CompactionSection(Section):
    """Many small files become few, by the driver beside its work."""

    enabled: bool = True
    """Whether the driver does it. `holdfast compact` does it at any time."""
    every: Positive = timedelta(minutes=1)
    """How often it looks for something to do."""
    keep: Positive = timedelta(days=1)
    """How long what was replaced stays, for those who still read it; at least 1h."""
    file_size: Size = 64 << 20
    """Bytes of a data file of a Delta table, at most. Objects of an archive hold up to 200,000 events."""


class SweeperSection(Section):
    """Stuck work, retention and dead consumers: one per deployment, under a lock."""

    interval: Positive = timedelta(seconds=30)
    """Time between two sweeps."""
    lock_ttl: Positive = timedelta(seconds=60)
    """How long a sweeper that died keeps the others out. A living one renews its lock."""
    stuck_threshold: Positive = timedelta(seconds=300)
    """How long a task may be silent, where `tasks` says nothing else."""
    dedupe_window: Positive = timedelta(days=14)
    """How long an event's id is remembered; at least as long as the longest retention."""
    history: Positive = timedelta(days=7)
    """How long the record of a job is kept after it was done, cancelled or discarded."""
    dead_letters: Positive | None = None
    """Age at which dead letters are purged. Without it they stay until somebody acts."""
    dead_consumers: DeadConsumersSection = Field(default_factory=DeadConsumersSection)
    lag_threshold: LagSection = Field(default_factory=LagSection)
    guard_groups: dict[Pattern, list[str]] = Field(default_factory=dict)
    """By pattern: foreign groups without whose acknowledgement nothing is trimmed. All patterns that select
    a channel count. A group that does not exist keeps everything."""


class DlqSection(Section):
    """The summary of dead letters. Counts are exact at any time; this is about how they are kept."""

    interval: Positive = timedelta(minutes=10)
    """How often changes are folded into the summary. Every instance looks after it, one does it."""


class RetentionSection(Section):
    """How long, and how much of, a channel's log is kept. A duration alone means `max_age`."""

    max_age: Positive | None = None
    """Age at which an event is removed, once nobody needs it any more."""
    max_bytes: Size | None = None
    """Size at which `on_full` applies."""
    on_full: Literal["refuse", "drop_oldest"] = "refuse"
    """At `max_bytes`: refuse publishes, or remove the oldest events although stream consumers have not read
    them."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"max_age": value}

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.max_age is None and self.max_bytes is None:
            raise InvalidInput("it keeps everything for ever; write max_age, max_bytes or both")
        if "on_full" in self.model_fields_set and self.max_bytes is None:
            raise InvalidInput("on_full is about max_bytes, which is not there; add it, or leave on_full out")
        return self


class ArchiveStream(Section):
    """Which channels are archived, and where to."""

    stream: Pattern
    """The channels."""
    destination: Destination
    """`s3`, `folder` or `postgres`, or a URL: `s3://bucket/prefix`, `file:///folder`, `postgresql://…`."""
    bucket: str | None = None
    """For `s3`: the bucket. Default: `NAMESPACE-archive`."""
    path: str | None = None
    """For `folder`: the folder. For `s3`: a prefix inside the bucket."""
    batch_size: Batch = 1000
    """Events per object."""
    batch_timeout: Positive = timedelta(minutes=15)
    """An object that is not full is written after this time."""
    format: Literal["jsonl"] = "jsonl"
    """One JSON object per line."""
    compression: Literal["gzip"] = "gzip"
    """How objects are compressed."""
    partition: Literal["daily"] = "daily"
    """One folder per day of the events."""

    @model_validator(mode="after")
    def _leads_somewhere(self) -> Self:
        if "://" in self.destination and (self.bucket or self.path):
            raise InvalidInput("destination is a URL, which says it all; leave bucket and path out")
        if self.destination == "folder" and not self.path:
            raise InvalidInput("destination 'folder' has no path; add path: with the folder's name")
        return self


class ArchiverSection(Section):
    """What goes to cold storage."""

    streams: list[ArchiveStream] = Field(default_factory=list)
    """The streams that are archived. With neither a file nor a store: all channels, into `.holdfast/cold`."""
    lag_threshold: LagSection = Field(default_factory=LagSection)
    compaction: CompactionSection = Field(default_factory=CompactionSection)


class TaskTypeSection(Section):
    """The time and the retries of a type of task."""

    timeout: Positive | None = None
    """How long a worker may be silent. Default: the one of `tasks.default`."""
    max_retries: Count | None = None
    """How often a task is tried again. Default: the one of `tasks.default`."""


class TaskDefaultSection(Section):
    """Types of tasks that are not listed, and what a listed one leaves out."""

    timeout: Positive | None = None
    """How long a worker may be silent. Default: `sweeper.stuck_threshold`."""
    max_retries: Count = 3
    """How often a task is tried again."""


class TasksSection(Section):
    """Types of tasks."""

    types: dict[TaskName, TaskTypeSection] = Field(default_factory=dict)
    """By name of the type."""
    default: TaskDefaultSection = Field(default_factory=TaskDefaultSection)


class ColumnSection(Section):
    """A part of the JSON data as a column. A type alone takes the field of the column's own name."""

    path: str | None = None
    """Where it stands: `$.user.name`, `$.items[0]`. Default: the field of the column's name."""
    type: str = "text"
    """`text`, `integer`, `number`, `boolean`, `time`, `date`, `json` or `decimal(18,3)`."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value


class TableSection(Section):
    """The table of some channels."""

    table: str = "events"
    """Its name. `{channel}` in it makes one table for each channel."""
    columns: dict[str, ColumnSection] = Field(default_factory=dict)
    """Columns besides those that every table has. One that is new here is added to the table."""


class ValidationSection(Section):
    """What the data of some channels must be."""

    payload: Literal["json", "any"] = "json"
    """`any` also takes bytes that are no JSON; they go into `data_base64`."""
    required: list[str] = Field(default_factory=list)
    """Fields that the JSON object must have."""
    schema_file: str | None = None
    """A file with a JSON Schema."""


class WalSection(Section):
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


class FlushSection(Section):
    """When the events of all channels that wait become one batch, whichever comes first."""

    rows: Batch = 50_000
    """So many events wait."""
    bytes: Size = 32 << 20
    """So much data waits, about."""
    every: Positive = timedelta(seconds=10)
    """The oldest has waited for so long."""


class IngestSection(Section):
    """What goes into the warehouse."""

    channels: list[Pattern] = Field(default_factory=list)
    """The channels. With neither a file nor a store: all, whatever their data."""
    warehouse: Address = "duckdb://.holdfast/warehouse.duckdb"
    """`duckdb:///path/to/file.duckdb`, `delta:///path/to/folder` or `delta+s3://bucket/prefix`."""
    batch_rows: Batch = 250_000
    """Events of one batch, at most."""
    flush: FlushSection = Field(default_factory=FlushSection)
    freshness: Positive = timedelta(minutes=15)
    """An event without a row for longer raises an alert, and `/readyz` fails."""
    metrics_port: Port | None = None
    """Where the driver answers Prometheus. Without it, nowhere."""
    wal: WalSection = Field(default_factory=WalSection)
    compaction: CompactionSection = Field(default_factory=CompactionSection)
    tables: dict[Pattern, TableSection] = Field(default_factory=dict)
    """By pattern; the most specific one decides. A channel that none selects goes into `events`."""
    validation: dict[Pattern, ValidationSection] = Field(default_factory=dict)
    """By pattern; the most specific one decides. Where none does, the data must be JSON."""


class ServerLimits(Section):
    """What one request may cost."""

    body: Size = 16 << 20
    """The largest body; a stream of events is counted as it comes. Larger ones are answered with 413."""
    batch: Batch = 1000
    """The most events, or jobs, in one call."""
    headers: Size = 32 << 10
    """The largest address and headers together; above it the answer is 431."""
    depth: Batch = 64
    """How deep JSON may nest."""
    values: Batch = 200_000
    """How many values (numbers, texts, lists, objects) JSON may have: a body, or an event of a batch or of a
    stream; a whole batch four times as many. Above it the answer is 413."""
    answer: Size = 4 << 20
    """How many bytes of events one answer has, about: a list ends after the event that reaches it, with the
    place where to go on; a poll leases no more."""
    channels: Batch = 1000
    """The most channels that a token, unless it is an admin's, may cover and still make a new one, which
    publishing does; above it the answer is 409."""
    consumers: Batch = 100
    """The most worker consumers of a channel, unless an admin makes more; above it the answer is 409."""
    schedules: Batch = 100
    """The most schedules of a channel, unless an admin makes more; above it the answer is 409."""
    rate: Count = 1000
    """Requests a second for each token, twice as many at once; above it the answer is 429. 0: no limit."""
    timeout: Positive = timedelta(seconds=60)
    """How long a request may take before its answer begins, without the time in which its body comes; after
    it the answer is 504. A poll has its `wait` on top of it."""
    header_timeout: Positive = timedelta(seconds=10)
    """How long a client may take to send the headers of a request; after it the answer is 408."""
    body_timeout: Positive = timedelta(seconds=30)
    """How long the server waits for the body of a request, in all; after it the answer is 408."""
    write_timeout: Positive = timedelta(seconds=30)
    """How long a client may take to go on reading an answer; after it the connection is closed."""
    keep_alive: Positive = timedelta(seconds=75)
    """How long a connection may wait for its next request. Longer than a proxy in front keeps its own."""
    connections: Batch = 1000
    """The most connections; never more than half of the descriptors that the process may open. One more takes
    the place of the one that has waited longest for a request; where none waits it is answered with 503."""
    connections_per_address: Batch = 200
    """The most connections from one address, or from one /64 of IPv6."""
    live: Batch = 200
    """The most live pages that are open at once; above it the answer is 503."""
    live_per_caller: Batch = 20
    """The most of them for one token; above it the answer is 429."""


class ServerSection(Section):
    """The HTTP server of `holdfast up` and `holdfast serve`."""

    host: str = "127.0.0.1"
    """The address that it listens on. Only this machine reaches the default."""
    port: Port = 8420
    """The port. 0 takes a free one."""
    open: bool = False
    """Whether programs on this machine may do everything without a token. Only on loopback, and never behind
    a proxy: then everybody whom the proxy lets through is on this machine."""
    open_metrics: bool = False
    """Whether `/metrics` is read without a token, by everybody who reaches the server."""
    trusted_proxies: tuple[Network, ...] = ()
    """The addresses and networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed: who
    calls, for limits and logs, and whether over TLS."""
    require_signatures: bool = False
    """Whether a token's secret must not travel: requests are signed with it instead."""
    signature_window: Positive = timedelta(minutes=5)
    """How far the time of a signature may be from the store's."""
    session_lifetime: Positive = timedelta(hours=12)
    """How long a browser stays signed in."""
    limits: ServerLimits = Field(default_factory=ServerLimits)


class TaskLimits(NamedTuple):
    """What holds for one type of task."""

    timeout: timedelta
    max_retries: int


class Config(Section):
    """Everything that a file can say."""

    url: Urls = ()
    """The store, or the stores: several are partitions. Default: `DATABASE_URL`, else a private PostgreSQL
    under `.holdfast/`."""
    namespace: Namespace = "gbe"
    """The first token of the system's own channels."""
    log_format: Literal["auto", "lines", "json"] = "auto"
    """How commands that run on write their logs to stderr. `auto`: lines at a terminal, else JSON."""
    log_folder: str | None = None
    """Where `up` and `serve` write their logs, one file for each process. Default: `.holdfast/logs` at a
    terminal, which shows the status lines then, else stderr."""
    sweeper: SweeperSection = Field(default_factory=SweeperSection)
    retention: dict[Pattern, RetentionSection] = Field(default_factory=dict)
    """By pattern. The most specific pattern decides: compared token by token from the left, a name says more
    than `*`, and `*` more than `>`. A channel that none selects is kept for ever."""
    dlq: DlqSection = Field(default_factory=DlqSection)
    archiver: ArchiverSection = Field(default_factory=ArchiverSection)
    archival: list[ArchiveStream] = Field(default_factory=list)
    """Another spelling of `archiver.streams`; both count."""
    ingest: IngestSection = Field(default_factory=IngestSection)
    tasks: TasksSection = Field(default_factory=TasksSection)
    server: ServerSection = Field(default_factory=ServerSection)

    @property
    def archive_streams(self) -> list[ArchiveStream]:
        """What is archived, in both spellings."""
        return self.archiver.streams + self.archival

    def task(self, name: str) -> TaskLimits:
        """What holds for a type of task."""
        given, default = self.tasks.types.get(name, TaskTypeSection()), self.tasks.default
        retries = default.max_retries if given.max_retries is None else given.max_retries
        return TaskLimits(given.timeout or default.timeout or self.sweeper.stuck_threshold, retries)
