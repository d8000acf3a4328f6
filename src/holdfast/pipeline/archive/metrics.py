"""Metrics of a running archiver: a small object that others read, filled by the commits and by Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryProgress

from holdfast.model.log import Lag
from holdfast.pipeline.archive.manifest import Manifest
from holdfast.pipeline.offsets import Spot


@dataclass(slots=True)
class Totals:
    """What was archived of one channel."""

    rows: int = 0
    objects: int = 0
    bytes: int = 0
    commits: int = 0


class Batch(NamedTuple):
    """One batch: its events, how long it took, and how long of that it took to find out where it ends."""

    rows: int
    seconds: float
    planning_seconds: float


@dataclass(slots=True)
class Metrics:
    """Counts since the archiver started; the latest batches; how far behind it is."""

    channels: dict[str, Totals] = field(default_factory=dict)
    failures: int = 0
    last_commit: datetime | None = None
    lag: dict[Spot, Lag] = field(default_factory=dict)
    batches: deque[Batch] = field(default_factory=lambda: deque(maxlen=100))
    _rows: dict[tuple[str, int], int] = field(default_factory=dict)

    def committed(self, manifests: Sequence[Manifest], batch: tuple[str, int] | None = None) -> None:
        """Something is archived; `batch` is the query's name and Spark's number, where it was a batch."""
        if batch is not None:
            self._rows[batch] = sum(manifest.rows for manifest in manifests)
        for manifest in manifests:
            totals = self.channels.setdefault(manifest.spot.channel, Totals())
            totals.commits += 1
            totals.rows += manifest.rows
            totals.objects += len(manifest.objects)
            totals.bytes += sum(each.bytes for each in manifest.objects)
            self.last_commit = datetime.now(UTC)

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """What a query reports after a batch; one without events, or told of before, is no news."""
        if rows := self._rows.pop((progress.name or "", progress.batchId), 0):
            seconds = progress.durationMs.get("triggerExecution", 0) / 1000
            self.batches.append(Batch(rows, seconds, progress.durationMs.get("latestOffset", 0) / 1000))
