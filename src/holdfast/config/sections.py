"""The sections of the file. What stands under a key is what the reference says about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from holdfast.config.values import Batch, Count, Destination, Pattern, Positive, Size, TaskName
from holdfast.model.errors import InvalidInput


class Section(BaseModel):
    """What all of them share: no unknown keys, no changes, and an empty one is one of defaults."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _nothing_under_it(cls, value: Any, info: ValidationInfo) -> Any:
        default = cls.model_fields[info.field_name or ""].get_default(call_default_factory=True)
        return default if value is None and isinstance(default, Section | dict | list) else value


class DeadConsumers(Section):
    """Foreign Redis or NATS groups whose members are gone."""

    alive: Positive = timedelta(minutes=5)
    """A member that was seen within this time is living."""
    after: Positive = timedelta(days=7)
    """A group with pending entries and without a living member for so long is dead."""
    action: Literal["report", "remove"] = "report"
    """What becomes of a dead group. One that guards a channel is never removed."""


class LagThreshold(Section):
    """How far behind a stream consumer may be before there is an alert."""

    events: Count = 10_000
    """Events that it has not read."""
    age: Positive = timedelta(hours=1)
    """Age of the oldest of them."""


class Compaction(Section):
    """Many small files become few, by the driver beside its work."""

    enabled: bool = True
    """Whether the driver does it. `holdfast compact` does it at any time."""
    every: Positive = timedelta(minutes=1)
    """How often it looks for something to do."""
    keep: Positive = timedelta(days=1)
    """How long what was replaced stays, for those who still read it; at least 1h."""
    file_size: Size = 64 << 20
    """Bytes of a data file of a Delta table, at most. Objects of an archive hold up to 200,000 events."""


class Sweeper(Section):
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
    dead_consumers: DeadConsumers = Field(default_factory=DeadConsumers)
    lag_threshold: LagThreshold = Field(default_factory=LagThreshold)
    guard_groups: dict[Pattern, list[str]] = Field(default_factory=dict)
    """By pattern: foreign groups without whose acknowledgement nothing is trimmed. All patterns that select
    a channel count. A group that does not exist keeps everything."""


class Dlq(Section):
    """The summary of dead letters. Counts are exact at any time; this is about how they are kept."""

    interval: Positive = timedelta(minutes=10)
    """How often changes are folded into the summary. Every instance looks after it, one does it."""


class Keep(Section):
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


class Archiver(Section):
    """What goes to cold storage."""

    streams: list[ArchiveStream] = Field(default_factory=list)
    """The streams that are archived. With neither a file nor a store: all channels, into `.holdfast/cold`."""
    lag_threshold: LagThreshold = Field(default_factory=LagThreshold)
    compaction: Compaction = Field(default_factory=Compaction)


class TaskType(Section):
    """The time and the retries of a type of task."""

    timeout: Positive | None = None
    """How long a worker may be silent. Default: the one of `tasks.default`."""
    max_retries: Count | None = None
    """How often a task is tried again. Default: the one of `tasks.default`."""


class TaskDefault(Section):
    """Types of tasks that are not listed, and what a listed one leaves out."""

    timeout: Positive | None = None
    """How long a worker may be silent. Default: `sweeper.stuck_threshold`."""
    max_retries: Count = 3
    """How often a task is tried again."""


class Tasks(Section):
    """Types of tasks."""

    types: dict[TaskName, TaskType] = Field(default_factory=dict)
    """By name of the type."""
    default: TaskDefault = Field(default_factory=TaskDefault)
