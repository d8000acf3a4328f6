"""When the ingest flushes: a decision on values alone."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from holdfast.model.errors import InvalidInput

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


def checked(flush: Flush) -> Flush:
    """The same; `InvalidInput` where it cannot be kept."""
    if flush.rows < 1 or flush.bytes < 1 or flush.every < _SHORTEST:
        raise InvalidInput(
            f"flush {flush.rows} rows, {flush.bytes} bytes, every {flush.every.total_seconds():g} s is not "
            "usable: rows and bytes are counts from 1 on, every is at least 50ms"
        )
    return flush
