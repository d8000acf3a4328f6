"""Metrics of a running archiver: a small object that others read, filled by the commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

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
    """Counts since the archiver started, and how far behind it is."""

    channels: dict[str, Totals] = field(default_factory=dict)
    failures: int = 0
    last_commit: datetime | None = None
    lag: dict[Spot, Lag] = field(default_factory=dict)

    def committed(self, manifests: Sequence[Manifest]) -> None:
        """Something is archived."""
        for manifest in manifests:
            totals = self.channels.setdefault(manifest.spot.channel, Totals())
            totals.commits += 1
            totals.rows += manifest.rows
            totals.objects += len(manifest.objects)
            totals.bytes += sum(each.bytes for each in manifest.objects)
            self.last_commit = datetime.now(UTC)
