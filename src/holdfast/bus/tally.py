"""The tally: how many attempts went through this process, and how they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from holdfast.model.job import Job

DONE, FAILED, BURIED, GIVEN_BACK, LOST = "done", "failed", "buried", "given_back", "lost"


class Tally:
    """Counts since the process began, by channel and consumer."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.settled: Counter[tuple[str, str, str]] = Counter()

    def began(self, channel: str, consumer: str, jobs: int) -> None:
        """Jobs were handed out."""
        if jobs:
            self.attempts[channel, consumer] += jobs

    def ended(self, outcomes: Iterable[tuple[Job, str, bool]]) -> None:
        """Attempts were settled, in the way that is named or, where it was refused, not any more."""
        self.settled.update(
            (job.channel, job.consumer, outcome if accepted else LOST) for job, outcome, accepted in outcomes
        )
