"""Token buckets: so many requests a second for each caller, twice as many at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from holdfast.server.refusals import TooManyRequests

_MOST = 10_000


class Buckets:
    """One bucket for each caller that was here lately, in this process."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, 2.0 * rate, clock
        self._full_at: dict[str, float] = {}

    def take(self, caller: str) -> None:
        """Take one request out of the caller's bucket; raises `TooManyRequests` where it is empty."""
        if not self._rate:
            return
        now = self._clock()
        full_at = max(self._full_at.get(caller, now), now) + 1 / self._rate
        wait = full_at - now - self._size / self._rate
        if wait > 1e-9:
            raise TooManyRequests(math.ceil(wait))
        self._full_at[caller] = full_at
        if len(self._full_at) > _MOST:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """A bucket that is full again is like one that was never used. Those that are not stay."""
        self._full_at = {caller: full for caller, full in self._full_at.items() if full > now}
