"""The configuration as a whole."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, NamedTuple

from pydantic import Field

from holdfast.config.ingest import Ingest
from holdfast.config.sections import Archiver, ArchiveStream, Dlq, Keep, Section, Sweeper, Tasks, TaskType
from holdfast.config.server import Server
from holdfast.config.values import Namespace, Pattern, Urls


class TaskTerms(NamedTuple):
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
    sweeper: Sweeper = Field(default_factory=Sweeper)
    retention: dict[Pattern, Keep] = Field(default_factory=dict)
    """By pattern. The most specific pattern decides: compared token by token from the left, a name says more
    than `*`, and `*` more than `>`. A channel that none selects is kept for ever."""
    dlq: Dlq = Field(default_factory=Dlq)
    archiver: Archiver = Field(default_factory=Archiver)
    archival: list[ArchiveStream] = Field(default_factory=list)
    """Another spelling of `archiver.streams`; both count."""
    ingest: Ingest = Field(default_factory=Ingest)
    tasks: Tasks = Field(default_factory=Tasks)
    server: Server = Field(default_factory=Server)

    @property
    def archive_streams(self) -> list[ArchiveStream]:
        """What is archived, in both spellings."""
        return self.archiver.streams + self.archival

    def task(self, name: str) -> TaskTerms:
        """What holds for a type of task."""
        given, default = self.tasks.types.get(name, TaskType()), self.tasks.default
        retries = default.max_retries if given.max_retries is None else given.max_retries
        return TaskTerms(given.timeout or default.timeout or self.sweeper.stuck_threshold, retries)
