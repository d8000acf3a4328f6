"""Health of a partition: whether its last read succeeded, and when to try again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

_FIRST, _LONGEST = 0.2, 15.0


@dataclass(slots=True)
class Health:
    """A failed read makes a partition faulty; a successful one heals it. Retries back off with jitter."""

    faulty: bool = False
    reason: str = ""
    load: int = 0
    """Live jobs as last read, plus what we published there since."""
    _failures: int = 0
    _retry_at: float = 0.0

    def failed(self, reason: str) -> None:
        """The store did not answer. What fails before the next try is due does not put it off."""
        due = self.worth_trying
        self.faulty, self.reason = True, reason
        if due:
            wait = min(_FIRST * 2.0 ** min(self._failures, 16), _LONGEST)
            self._failures += 1
            self._retry_at = time.monotonic() + wait * random.uniform(0.5, 1.0)  # noqa: S311 - no secret

    def succeeded(self, load: int) -> None:
        """A read went through: the partition takes new items again."""
        self.faulty, self.reason, self._failures, self.load = False, "", 0, load

    @property
    def worth_trying(self) -> bool:
        """Healthy, or faulty for long enough to ask again."""
        return not self.faulty or time.monotonic() >= self._retry_at
