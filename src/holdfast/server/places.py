"""Places: how many at once there may be of something, for each caller and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.server.refusals import Full


class Places:
    """The places that are taken, in this process."""

    def __init__(self, what: str, *, each: int, total: int) -> None:
        self._what, self._each, self._total = what, each, total
        self._taken: Counter[str] = Counter()

    @contextmanager
    def take(self, caller: str) -> Iterator[None]:
        """A place for a caller; raises `Full` where there is none."""
        if self._taken[caller] >= self._each:
            raise Full(429, f"{self._each} {self._what} of this caller are open; close some of them")
        if self._taken.total() >= self._total:
            raise Full(503, f"{self._total} {self._what} are open here; come again later")
        self._taken[caller] += 1
        try:
            yield
        finally:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]
