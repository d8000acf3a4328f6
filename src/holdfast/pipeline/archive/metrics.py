"""Metrics of a running archiver: a small object that others read, filled by the commits and by Spark."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

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


@dataclass(slots=True)
class Metrics:
    """Counts since the archiver started; what Spark said last; how far behind it is."""

    channels: dict[str, Totals] = field(default_factory=dict)
    failures: int = 0
    last_commit: datetime | None = None
    rows_per_second: float = 0.0
    batch_seconds: float = 0.0
    planning_seconds: float = 0.0
    """Of `batch_seconds`: to find out where the batch ends."""
    lag: dict[Spot, Lag] = field(default_factory=dict)
    progress: deque[StreamingQueryProgress] = field(default_factory=lambda: deque(maxlen=100))
    """What Spark said of the latest batches that had rows."""

    def committed(self, manifests: Sequence[Manifest]) -> None:
        """A batch is archived."""
        for manifest in manifests:
            totals = self.channels.setdefault(manifest.spot.channel, Totals())
            totals.commits += 1
            totals.rows += manifest.rows
            totals.objects += len(manifest.objects)
            totals.bytes += sum(each.bytes for each in manifest.objects)
            self.last_commit = datetime.now(UTC)

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """What a query reports after a batch; those without rows say nothing."""
        if progress.numInputRows:
            self.progress.append(progress)
            self.rows_per_second = progress.processedRowsPerSecond
            self.batch_seconds = progress.durationMs.get("triggerExecution", 0) / 1000
            self.planning_seconds = progress.durationMs.get("latestOffset", 0) / 1000


class Listener(StreamingQueryListener):
    """Listens to the queries of one archiver, by their names."""

    def __init__(self, metrics: Metrics, names: Set[str]) -> None:
        self._metrics, self._names = metrics, names

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to note."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch ended."""
        if event.progress.name in self._names:
            self._metrics.progressed(event.progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to note."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The archiver sees it by itself."""
