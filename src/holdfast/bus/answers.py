"""Answers: what becomes of an attempt, handed to the settler of the job's own store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial

from holdfast.bus.client import Bus
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.settlement import Failed
from holdfast.bus.settler import Settler
from holdfast.model.decide import describe
from holdfast.model.duration import parse_duration
from holdfast.model.errors import HoldfastError, InvalidInput, Snooze, Terminal
from holdfast.model.job import Job, Retry

log = logging.getLogger(__name__)


class Answers:
    """One settler for each store: no answer waits for a store that is none of its own."""

    def __init__(self, bus: Bus, heart: Heartbeat, on_settled: Callable[[int], None]) -> None:
        self._settlers = [
            Settler(bus.settlement, heart, partial(on_settled, partition.index))
            for partition in bus.partitions.all
        ]

    def done(self, job: Job) -> None:
        """The handler said yes."""
        settler = self._settlers[job.partition]
        settler.done.append(job)
        settler.kick()

    def refused(self, job: Job, error: BaseException) -> None:
        """What a handler raised: no, or not now."""
        settler = self._settlers[job.partition]
        if isinstance(error, Snooze):
            try:
                settler.back.append(Retry(job, parse_duration(error.delay, what="snooze")))
                settler.kick()
                return
            except InvalidInput as unusable:
                error = unusable
        failure = describe(error)
        log.warning(
            "%s/%s: attempt %s at event %s failed: %s: %s",
            *(job.channel, job.consumer, job.attempt, job.event.id, failure.kind, failure.error),
            exc_info=None if isinstance(error, HoldfastError) else error,
        )
        settler.failed.append(Failed(job, failure, isinstance(error, Terminal)))
        settler.kick()

    def give_back(self, jobs: Iterable[Job]) -> None:
        """These were not begun, or not ended: at no cost."""
        for job in jobs:
            settler = self._settlers[job.partition]
            settler.back.append(Retry(job, None))
            settler.kick()

    def pending(self, store: int) -> int:
        """Answers that a store's next batch will take."""
        return self._settlers[store].pending

    async def close(self, patience: float) -> None:
        """Wait until everything is settled, or give up: what is left comes back when its lease ends."""
        await asyncio.gather(*(settler.close(patience) for settler in self._settlers))
