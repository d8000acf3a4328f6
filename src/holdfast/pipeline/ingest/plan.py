"""The plan of an ingest: what goes where. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from holdfast.model.names import check_name, compile_pattern
from holdfast.pipeline.ingest.flush import Flush, checked
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.options import is_pattern
from holdfast.pipeline.upkeep import CompactionSettings
from holdfast.pipeline.wal.settings import WalSettings
from holdfast.pipeline.warehouse.tables import Tables


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """Which channels go into which warehouse, through which WAL."""

    channels: tuple[str, ...]
    """Names and patterns."""
    warehouse: str
    wal: WalSettings = field(default_factory=WalSettings)
    tables: Tables = field(default_factory=Tables)
    rules: Rules = field(default_factory=Rules)
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
        checked(self.flush)

    @property
    def lock_name(self) -> str:
        """One ingest is at work at a time."""
        return f"{self.namespace}:lock:ingest"
