"""Health: whether the WAL takes events, holds them whole, and gets rid of them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.model.duration import format_duration
from holdfast.pipeline.wal.log import Wal


@dataclass(frozen=True, slots=True)
class Health:
    """The WAL at a glance."""

    batches: int
    entries: int
    bytes: int
    oldest: timedelta | None
    """How long the oldest pending batch has waited."""
    quarantined: tuple[str, ...]
    failed: int
    """Batches that failed as a whole."""
    full: bool
    """Whether the ingest waits for room."""

    @property
    def ready(self) -> bool:
        """Whether new events can go in, and nothing in it is damaged."""
        return not self.full and not self.quarantined

    @property
    def message(self) -> str:
        """For people."""
        if self.quarantined:
            return f"damaged batches: {', '.join(self.quarantined[:3])}; see `quarantine/` of the WAL"
        if self.full:
            return f"full with {self.bytes} bytes pending: the warehouse does not keep up"
        waits = "" if self.oldest is None else f", the oldest for {format_duration(_seconds(self.oldest))}"
        return f"{self.entries} entries pending in {self.batches} batches{waits}"


def health(wal: Wal) -> Health:
    """Look at the WAL without changing it, but for putting damaged records into quarantine."""
    pending = wal.pending()  # may put some into quarantine
    survey = wal.survey()
    size = sum(batch.bytes for batch in pending)
    first: datetime | None = min((batch.created_at for batch in pending), default=None)
    return Health(
        batches=len(pending),
        entries=sum(batch.rows for batch in pending),
        bytes=size,
        oldest=None if first is None else wal.clock() - first,
        quarantined=tuple(sorted(survey.quarantined)),
        failed=len(survey.failed),
        full=size >= wal.settings.max_bytes,
    )


def _seconds(value: timedelta) -> timedelta:
    return timedelta(seconds=round(value.total_seconds()))
