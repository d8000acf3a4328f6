"""The settler: turns single answers of handlers into batches for the store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from holdfast import failpoints
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.settlement import Failed, Settlement
from holdfast.model.errors import Unavailable
from holdfast.model.job import Job, Retry

log = logging.getLogger(__name__)

T = TypeVar("T", Job, Failed, Retry)
_PAUSE, _LONGEST = 0.1, 2.0


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
        while self.pending:
            done, failed, back = self.done, self.failed, self.back
            self.done, self.failed, self.back = [], [], []
            await self._settle(done, lambda job: job, self._settlement.complete)
            failpoints.hit("worker.after_ack")
            await self._settle(failed, lambda item: item.job, self._settlement.fail)
            await self._settle(back, lambda item: item.job, self._settlement.retry)
            self._on_settled()

    async def _settle(
        self,
        items: Sequence[T],
        job_of: Callable[[T], Job],
        apply: Callable[[Sequence[T]], Awaitable[list[bool]]],
    ) -> None:
        if not items:
            return
        accepted = await self._until_answered(lambda: apply(items))
        self._heart.forget(map(job_of, items))
        refused = [job_of(item).id for item, answer in zip(items, accepted, strict=True) if not answer]
        if refused:
            self.lost += len(refused)
            log.warning("lease lost on job %s: its effects may run again", ", ".join(refused[:10]))

    async def _until_answered(self, ask: Callable[[], Awaitable[list[bool]]]) -> list[bool]:
        """Ask until the store answers; by then a stale token is refused, never applied twice."""
        pause = _PAUSE
        while True:
            try:
                return await ask()
            except Unavailable as error:
                log.warning("finalize waits for the store: %s", error)
            except Exception:
                log.exception("finalize failed and is tried again")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST)
