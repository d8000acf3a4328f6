"""Prefetch: how many jobs a worker leases ahead.

Many, while handlers are quick, since the batch is what makes a queue fast; few, while they are slow, since a
job that waits in one process cannot be worked on by another.
"""

from __future__ import annotations

MOST = 1000
_SOON, _LATE = 0.1, 0.5


class Prefetch:
    """Grows while a batch is gone within a tenth of a second, halves when it lasts above half a second."""

    def __init__(self, concurrency: int, fixed: int | None = None) -> None:
        self._least = min(concurrency, MOST) if fixed is None else fixed
        self._most = MOST if fixed is None else fixed
        self.size = self._least

    def worked_off(self, jobs: int, seconds: float) -> None:
        """Learn from how long a batch lasted."""
        if seconds < _SOON and jobs >= self.size // 2:
            self.size = min(self.size * 4, self._most)
        elif seconds > _LATE:
            self.size = max(self.size // 2, self._least)
