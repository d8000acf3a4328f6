"""The plan of an ingest: what goes where, and when it flushes. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name, compile_pattern
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.options import is_pattern
from holdfast.pipeline.upkeep import CompactionSettings
from holdfast.pipeline.wal.log import WalSettings
from holdfast.pipeline.warehouse.tables import Tables

_SHORTEST = timedelta(milliseconds=50)


class Flush(NamedTuple):
    """What makes the events of all channels that wait a batch, whichever comes first."""

    rows: int = 50_000
    bytes: int = 32 << 20
    every: timedelta = timedelta(seconds=10)
    """How long the oldest event may wait."""

    @property
    def look(self) -> timedelta:
        """How often to look."""
        return max(_SHORTEST, self.every / 4)


def is_due(rows: int, size: int, age: timedelta, flush: Flush) -> bool:
    """Whether to flush now what waits: so much, the oldest of it for so long. At the next look it must not
    have waited for longer than `every`."""
    return rows >= flush.rows or size >= flush.bytes or age + flush.look > flush.every


def check_flush(flush: Flush) -> Flush:
    """The same; `InvalidInput` where it cannot be kept."""
    if flush.rows < 1 or flush.bytes < 1 or flush.every < _SHORTEST:
        raise InvalidInput(
            f"flush {flush.rows} rows, {flush.bytes} bytes, every {flush.every.total_seconds():g} s is not "
            "usable: rows and bytes are counts from 1 on, every is at least 50ms"
        )
    return flush


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """Which channels go into which warehouse, through which WAL."""

    channels: tuple[str, ...]
    """Names and patterns."""
    warehouse: str
    wal: WalSettings = field(default_factory=WalSettings)
    tables: Tables = field(default_factory=Tables)
    rules: ValidationRules = field(default_factory=ValidationRules)
    namespace: str = "gbe"
    archives: tuple[str, ...] = ()
    """Where a damaged batch may be read that the log no longer has."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    max_rows: int = 250_000
    """Events of one batch, at most."""
    flush: Flush = field(default_factory=Flush)
    """When what waits becomes a batch."""
    freshness: timedelta = timedelta(minutes=15)
    """An event without a row for longer raises an alert, and the ingest is not ready."""

    def __post_init__(self) -> None:
        for channel in self.channels:
            compile_pattern(channel) if is_pattern(channel) else check_name(channel)
        check_flush(self.flush)

    @property
    def lock_name(self) -> str:
        """One ingest is at work at a time."""
        return f"{self.namespace}:lock:ingest"
