"""Backoff: how long to wait before the next try, in loops and in consumers' policies."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta

_MOST_DOUBLINGS = 32


def backoff_seconds(failures: int, first: float, longest: float, *, jitter: float = 0.5) -> float:
    """Return the seconds to wait after the `failures`-th failure in a row, counted from 1.

    They double from `first` up to `longest`; a random share of up to `jitter` is taken off, so that those who
    failed together do not try again together.
    """
    grown = min(first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest)
    return grown * random.uniform(1.0 - jitter, 1.0)  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True)
class Exponential:
    """`base`, then `factor` times more after each attempt up to `limit`, spread by `jitter`."""

    base: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    limit: timedelta = timedelta(hours=1)
    jitter: float = 0.2

    def delay(self, attempt: int, chance: random.Random) -> timedelta:
        """Return the wait after the `attempt`-th failure, never above `limit`."""
        limit = self.limit.total_seconds()
        try:
            grown = min(self.base.total_seconds() * self.factor ** (attempt - 1), limit)
        except OverflowError:  # a large budget outgrows a float
            grown = limit if self.base else 0.0
        spread = grown * (1 + self.jitter * (2 * chance.random() - 1))
        return timedelta(seconds=min(spread, limit))


@dataclass(frozen=True, slots=True)
class Steps:
    """An explicit list of waits; the last one repeats."""

    waits: tuple[timedelta, ...]

    def delay(self, attempt: int, chance: random.Random) -> timedelta:
        """Return the wait after the `attempt`-th failure, exactly as listed."""
        return self.waits[min(attempt, len(self.waits)) - 1]


Backoff = Exponential | Steps
"""How a consumer's policy spaces out retries."""
