"""Token buckets: so many requests a second for each caller, and some more at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from holdfast.server.refusals import TooManyRequests

_MOST = 10_000


class Buckets:
    """One bucket for each caller that was here lately, in this process."""

    def __init__(
        self,
        rate: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        at_once: int | None = None,
        what: str = "requests with this token",
    ) -> None:
        self._rate, self._clock, self._what = rate, clock, what
        self._size = 2.0 * rate if at_once is None else at_once
        self._full_at: dict[str, float] = {}
        self._most = _MOST

    def take(self, caller: str) -> None:
        """Take one request out of the caller's bucket; raises `TooManyRequests` where it is empty."""
        if not self._rate:
            return
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now) + 1 / self._rate
        wait = full_at - now - self._size / self._rate
        if wait > 1e-9:
            raise TooManyRequests(math.ceil(wait), self._what)
        self._full_at[caller] = full_at
        if len(self._full_at) > self._most:
            self._forget(now)

    def give_back(self, caller: str) -> None:
        """Put one request back that was taken."""
        if caller in self._full_at:
            self._full_at[caller] -= 1 / self._rate

    def _forget(self, now: float) -> None:
        """A bucket that is full again is like one that was never used. Those that are not stay; it is looked
        through again when there are twice as many."""
        self._full_at = {caller: full for caller, full in self._full_at.items() if full > now}
        self._most = max(_MOST, 2 * len(self._full_at))
