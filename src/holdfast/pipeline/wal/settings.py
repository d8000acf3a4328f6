"""Settings of the WAL and its loader."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from holdfast.model.duration import format_duration
from holdfast.model.errors import InvalidInput

SHORTEST_LEASE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class WalSettings:
    """What `ingest.wal` of the configuration says, whatever it comes from."""

    path: str = ".holdfast/wal"
    """A folder or `s3://bucket/prefix`."""
    retry_interval: timedelta = timedelta(seconds=30)
    """How often the loader looks for batches that are due."""
    max_retries: int = 100
    """After so many failed attempts a batch has failed."""
    retry_backoff: timedelta = timedelta(seconds=5)
    """The wait after the first failure; it doubles."""
    max_backoff: timedelta = timedelta(minutes=5)
    """The longest wait."""
    entry_ttl: timedelta = timedelta(hours=168)
    """A batch that the warehouse did not take for so long has failed, with the reason `expired`."""
    close_timeout: timedelta = timedelta(seconds=30)
    """How long a loader that is told to stop gets to finish its batch."""
    lease_duration: timedelta = timedelta(minutes=2)
    """How long others leave a batch to a loader that is silent."""
    confirmed_retention: timedelta = timedelta(hours=24)
    """How long a confirmed batch is kept; a warehouse can be rebuilt from what is there."""
    max_bytes: int = 10 << 30
    """The ingest waits while so much is pending."""

    def __post_init__(self) -> None:
        if self.lease_duration < SHORTEST_LEASE:
            raise InvalidInput(
                f"a lease of {format_duration(self.lease_duration)} is too short; "
                f"use at least {format_duration(SHORTEST_LEASE)}"
            )
        if self.retry_backoff > self.max_backoff:
            raise InvalidInput(
                f"retry_backoff {format_duration(self.retry_backoff)} is longer than max_backoff "
                f"{format_duration(self.max_backoff)}; exchange them"
            )
        if self.max_retries < 1 or self.max_bytes < 1:
            raise InvalidInput("max_retries and max_bytes are counts from 1 on")
