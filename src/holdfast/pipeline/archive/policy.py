"""A policy: what to archive, where to, and in batches of what size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations

from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name, compile_pattern, selects
from holdfast.pipeline.upkeep import CompactionSettings

MAX_BATCH = 1_000_000
ARCHIVER = "archiver"


@dataclass(frozen=True, slots=True)
class ArchivePolicy:
    """One entry of the archiver's configuration."""

    stream: str
    """A channel, or a pattern of channels."""
    destination: str
    """The URL of an object store."""
    batch_size: int = 1000
    """Messages per object."""
    batch_timeout: timedelta = timedelta(minutes=15)
    """How old the oldest waiting message may get before a smaller object is written."""
    consumer: str = ARCHIVER
    namespace: str = "gbe"
    lag_events: int = 10_000
    lag_age: timedelta = timedelta(hours=1)
    """From here on an archiver that is behind raises an alert."""
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    max_rows: int = 500_000
    """Messages per commit, at most."""

    def __post_init__(self) -> None:
        compile_pattern(self.stream)
        check_name(self.consumer, "consumer")
        if not 1 <= self.batch_size <= MAX_BATCH:
            raise InvalidInput(f"batch_size {self.batch_size} is not usable; take 1 to {MAX_BATCH}")
        if self.max_rows < self.batch_size:
            raise InvalidInput(f"max_rows {self.max_rows} is below batch_size {self.batch_size}; raise it")

    @property
    def announced_on(self) -> str:
        """The channel of the archiver's own announcements."""
        return f"{self.namespace}.events.system.archive"

    @property
    def report_name(self) -> str:
        """What the driver's record is called: `archive`, unless it has a consumer of its own."""
        return "archive" if self.consumer == ARCHIVER else f"archive.{self.consumer}"

    @property
    def lock_name(self) -> str:
        """One archiver at a time for each consumer."""
        return f"{self.namespace}:lock:archiver:{self.consumer}"


def refuse_conflicts(policies: Sequence[ArchivePolicy], channels: Iterable[str]) -> None:
    """Raise `InvalidInput` where two policies of one consumer select a channel: both have one cursor."""
    for channel in channels:
        claims = [each for each in policies if selects(each.stream, channel)]
        for one, other in combinations(claims, 2):
            if one.consumer == other.consumer:
                raise InvalidInput(
                    f"channel {channel!r} is selected by {one.stream!r} and by {other.stream!r}; "
                    "narrow one of the patterns, or give one of them a consumer of its own"
                )
