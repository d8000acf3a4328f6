"""What upkeep is told, and what a step of it did. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from holdfast.model.errors import InvalidInput

SHORTEST = timedelta(hours=1)


class Upkept(NamedTuple):
    """In files or objects."""

    merged: int = 0
    into: int = 0
    indexed: int = 0
    removed: int = 0

    def plus(self, other: Upkept) -> Upkept:
        """Both together."""
        return Upkept(*(one + two for one, two in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What `compaction` of the configuration says."""

    enabled: bool = True
    every: timedelta = timedelta(minutes=1)
    keep: timedelta = timedelta(days=1)
    """How long what was replaced stays, for those who still read it."""
    file_size: int = 64 << 20
    """Bytes of a data file of Delta, at most."""

    def __post_init__(self) -> None:
        if self.keep < SHORTEST:
            raise InvalidInput(f"keep {self.keep} is too short: what is being read may go; use at least 1h")
