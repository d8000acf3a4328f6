"""Prefetch: how many jobs a worker leases ahead.

Many, while handlers are quick, since the batch is what makes a queue fast; few, while they are slow, since a
job that waits in one process cannot be worked on by another.
"""

from __future__ import annotations

MOST = 500
_AHEAD = 0.25
_GROWTH = 8


class Prefetch:
    """As many jobs as the handlers lately finished in a quarter of a second, within bounds."""

    def __init__(self, concurrency: int, fixed: int | None = None) -> None:
        self._least = min(concurrency, MOST) if fixed is None else fixed
        self._most = MOST if fixed is None else fixed
        self.size = self._least

    def room(self, waiting: int) -> int:
        """How many to lease while so many wait: up to a fixed size, or a whole batch ahead."""
        if waiting >= self.size:
            return 0
        return self.size - waiting if self._least == self._most else self.size

    def learn(self, finished: int, seconds: float) -> None:
        """So many jobs were finished in so long a time."""
        wanted = int(_AHEAD * finished / max(seconds, 1e-6))
        step = min(max(wanted, self.size // 2), self.size * _GROWTH)
        self.size = min(max(step, self._least), self._most)
