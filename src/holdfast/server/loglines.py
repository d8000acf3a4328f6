"""Log lines that anybody can cause: so many a minute, and a count of the others."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

MINUTE = 60.0


@dataclass(slots=True)
class _Minute:
    began: float
    lines: int = 0
    left_out: int = 0


class PerMinute:
    """So many lines of each kind in a minute. The kinds must be few: each is remembered."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._kinds: dict[str, _Minute] = {}

    def take(self, kind: str) -> str | None:
        """What to add to a line: how many were left out before it; None where this one is left out too."""
        now, minute = self._clock(), self._kinds.get(kind)
        left_out = 0
        if minute is None or now - minute.began >= MINUTE:
            left_out = minute.left_out if minute is not None else 0
            minute = self._kinds[kind] = _Minute(now)
        if minute.lines >= self._most:
            minute.left_out += 1
            return None
        minute.lines += 1
        return f" ({left_out} more since the last line)" if left_out else ""


class OncePerMinute(logging.Filter):
    """Lets one line a minute through of each message that strangers can cause, and counts the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines = PerMinute(1, clock)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is told; errors always are."""
        if record.levelno > logging.WARNING:
            return True
        more = self._lines.take(record.msg)
        if more:
            record.msg += more
        return more is not None
