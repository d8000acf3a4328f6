"""The settler: turns single answers of handlers into batches for the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast import failpoints
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.settlement import Failed, Settlement
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.errors import Unavailable
from holdfast.model.job import Job, Retry

log = logging.getLogger(__name__)

T = TypeVar("T", Job, Failed, Retry)
_PAUSE, _LONGEST = 0.1, 2.0
_TRIES = 30  # with the pauses between them about a minute
_IN_A_ROW = 3


class Settler:
    """While one batch is on its way to the store, the next one gathers: no answer waits for a timer."""

    def __init__(self, settlement: Settlement, heart: Heartbeat, on_settled: Callable[[], None]) -> None:
        self._settlement, self._heart, self._on_settled = settlement, heart, on_settled
        self.done: list[Job] = []
        self.failed: list[Failed] = []
        self.back: list[Retry] = []
        self.lost = 0
        """How many answers came after their lease was gone."""
        self._task: asyncio.Task[None] | None = None
        self._tries: dict[int, int] = {}

    @property
    def pending(self) -> int:
        """Answers that no batch has taken yet."""
        return len(self.done) + len(self.failed) + len(self.back)

    def kick(self) -> None:
        """Something was added to `done`, `failed` or `back`."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def close(self, patience: float) -> None:
        """Wait until everything is settled, or give up: what is left comes back when its lease ends."""
        if self._task is None:
            return
        self.kick()
        await asyncio.wait([self._task], timeout=patience)
        if not self._task.done():
            log.warning("the store did not answer in time: some jobs come back when their leases end")
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _flush(self) -> None:
        pause = _PAUSE
        while self.pending:
            done, failed, back = self.done, self.failed, self.back
            self.done, self.failed, self.back = [], [], []
            left_done = await self._settle(done, lambda job: job, self._settlement.complete)
            failpoints.hit("worker.after_ack")
            left_failed = await self._settle(failed, lambda item: item.job, self._settlement.fail)
            left_back = await self._settle(back, lambda item: item.job, self._settlement.retry)
            self._on_settled()
            if not (left_done or left_failed or left_back):
                pause = _PAUSE
                continue
            self.done += left_done
            self.failed += left_failed
            self.back += left_back
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST)

    async def _settle(
        self,
        items: Sequence[T],
        job_of: Callable[[T], Job],
        apply: Callable[[Sequence[T]], Awaitable[list[bool]]],
    ) -> list[T]:
        """Ask the store once; returns what must be asked again. A repeat is refused, never applied twice."""
        if not items:
            return []
        try:
            accepted = await apply(items)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            if isinstance(error, Unavailable):
                log.warning("finalize waits for the store: %s", error)
                return list(items)
            if len(items) == 1:
                return [] if self._is_given_up(job_of(items[0]), error) else list(items)
            log.warning("finalize of %s jobs failed, each is tried by itself: %r", len(items), error)
            return await self._settle_each(items, job_of, apply)
        jobs = [job_of(item) for item in items]
        self._heart.forget(jobs)
        for job in jobs if self._tries else ():
            self._tries.pop(id(job), None)
        refused = [job.id for job, answer in zip(jobs, accepted, strict=True) if not answer]
        if refused:
            self.lost += len(refused)
            log.warning("lease lost on job %s: its effects may run again", ", ".join(refused[:10]))
        return []

    async def _settle_each(
        self,
        items: Sequence[T],
        job_of: Callable[[T], Job],
        apply: Callable[[Sequence[T]], Awaitable[list[bool]]],
    ) -> list[T]:
        """An answer that the store cannot take holds up no other. After some in a row it is the store that
        fails: what was not tried comes first the next time."""
        left: list[T] = []
        in_a_row = 0
        for place, item in enumerate(items, 1):
            again = await self._settle([item], job_of, apply)
            left += again
            in_a_row = in_a_row + 1 if again else 0
            if in_a_row == _IN_A_ROW:
                return list(items[place:]) + left
        return left

    def _is_given_up(self, job: Job, error: BaseException) -> bool:
        """Count a failure that no store should raise; after many the job is left to the end of its lease."""
        tries = self._tries.pop(id(job), 0) + 1
        log.warning("finalize of job %s failed: %r", job.id, error, exc_info=error if tries == 1 else None)
        if tries < _TRIES:
            self._tries[id(job)] = tries
            return False
        self._heart.forget([job])
        log.error("job %s cannot be finalized: it comes back when its lease ends", job.id)
        return True
