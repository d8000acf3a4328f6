"""What the ingest reports of its WAL, so that nobody else needs access to it."""

from __future__ import annotations

import time
from typing import Any

from holdfast.model.duration import format_duration
from holdfast.pipeline.ingest.freshness import Freshness
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.wal.health import Health, health

EVERY = 5.0
"""A look lists the WAL's names and reads its pending batches: not for every report."""
_COUNTERS = ("writes", "confirms", "retries", "failures", "recoveries")


class WalReport:
    """The WAL's counters as they are, its health as of the last look."""

    def __init__(self, wal: Wal, metrics: IngestMetrics, freshness: Freshness) -> None:
        self._wal, self._metrics, self._freshness = wal, metrics, freshness
        self._health: Health | None = None
        self._looked, self._trouble = -EVERY, ""

    def __call__(self) -> dict[str, Any]:
        """The part `wal` of a report."""
        if time.monotonic() - self._looked >= EVERY:
            self._look()
        return {"wal": self._counted() | self._known()}

    def _look(self) -> None:
        self._looked = time.monotonic()
        try:
            self._health, self._trouble = health(self._wal), ""
        except Exception as error:  # whatever its store says, the report tells it
            self._trouble = f"it cannot be read: {error}"

    def _counted(self) -> dict[str, float]:
        read = self._metrics.registry.get_sample_value
        return {name: read(f"consumer_wal_{name}_total") or 0.0 for name in _COUNTERS}

    def _known(self) -> dict[str, Any]:
        found = self._health or Health(0, 0, 0, None, (), 0, full=False)
        trouble = self._trouble or ("" if not found.ready else self._late())
        return {
            "ready": found.ready and not trouble,
            "message": trouble or found.message,
            "pending_batches": found.batches,
            "pending_entries": found.entries,
            "failed_batches": found.failed,
            "quarantined_batches": len(found.quarantined),
            "bytes": found.bytes,
            "limit_bytes": self._wal.settings.max_bytes,
            "oldest_seconds": 0.0 if found.oldest is None else found.oldest.total_seconds(),
            "freshness_seconds": self._freshness.seconds,
            "unloaded_seconds": self._freshness.oldest,
        }

    def _late(self) -> str:
        if not self._freshness.late:
            return ""
        limit = format_duration(self._freshness.limit)
        return f"an event has no row after {self._freshness.oldest:.0f} s, and ingest.freshness is {limit}"
