"""The supply of a worker: leases the next jobs while the last ones are worked on."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable

from holdfast import failpoints
from holdfast.bus.client import Bus
from holdfast.bus.handler import Handler
from holdfast.bus.partitions import Partition
from holdfast.bus.prefetch import Prefetch
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Job

log = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 1.0  # between polls that fail, whatever the reason, and whoever wakes us
_SLOW = 0.5  # who has not answered by then no longer keeps the others from being asked


class Supply:
    """Polls each store in a loop of its own: one that hangs, or fails, holds up no other.

    `take` gets what was leased; while `refuse` says so, a store is not asked.
    """

    def __init__(
        self,
        bus: Bus,
        handler: Handler,
        idle: float,
        waiting: deque[Job],
        take: Callable[[list[Job]], None],
        refuse: Callable[[int], bool],
    ) -> None:
        self._bus, self._handler, self._idle = bus, handler, idle
        self._waiting, self._take, self._refuse = waiting, take, refuse
        self._prefetch = Prefetch(handler.concurrency, handler.prefetch)
        self._finished, self._learnt_at = 0, time.monotonic()
        self._asked: dict[int, int] = {}
        self._news = [asyncio.Event() for _ in bus.partitions.all]
        self._room = asyncio.Event()
        self._stop = asyncio.Event()

    def start(self) -> list[asyncio.Task[None]]:
        """Begin; the tasks end after `stop`."""
        return [asyncio.create_task(self._poll_on(each)) for each in self._bus.partitions.all]

    def stop(self) -> None:
        """Ask for nothing more. What is on its way still comes."""
        self._stop.set()
        self._room.set()
        for index in range(len(self._news)):
            self.wake(index)

    def wake(self, index: int) -> None:
        """A store may have new work."""
        self._news[index].set()

    def begun(self) -> None:
        """A job has left those that wait."""
        if self._prefetch.room(len(self._waiting)):
            self.ask_again()

    def finished(self) -> None:
        """A job has ended."""
        self._finished += 1

    def ask_again(self) -> None:
        """What kept us from asking may be over."""
        self._room.set()

    async def _poll_on(self, partition: Partition) -> None:
        """Poll until stopped, whatever the store raises: then again after a pause that doubles."""
        news, failures = self._news[partition.index], 0
        while not self._stop.is_set():
            await asyncio.sleep(0)  # whoever waited for room comes first
            news.clear()
            try:
                jobs = await self._poll(partition)
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                self._log(error, failures)
                pause = min(_FIRST_PAUSE * 2 ** min(failures, 16), _LONGEST_PAUSE)
                failures += 1
                await _heard(self._stop, pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
                continue
            failures = 0
            if jobs is None:
                return
            failpoints.hit("worker.after_claim")
            self._take(jobs)
            if not jobs and not self._stop.is_set():
                await _heard(news, self._idle)

    def _log(self, error: BaseException, failures: int) -> None:
        """An error that is not ours to know comes with its traceback, the first time in a row."""
        known = isinstance(error, HoldfastError)
        log.warning(
            "%s/%s: poll failed: %s",
            *(self._handler.channel, self._handler.consumer, error if known else repr(error)),
            exc_info=None if known or failures else error,
        )

    async def _poll(self, partition: Partition) -> list[Job] | None:
        """What was leased; None once we are stopped."""
        index = partition.index
        await self._bus.partitions.ready(partition)
        while (not self._limit() or self._refuse(index)) and not self._stop.is_set():
            self._room.clear()
            await self._room.wait()
        if self._stop.is_set():
            return None
        self._learn()
        self._asked[index] = limit = max(self._limit(), 1)
        slow = asyncio.get_running_loop().call_later(_SLOW, self._answered, index)
        try:
            return await self._bus.poll_at(
                partition, self._handler.channel, self._handler.consumer, limit=limit
            )
        finally:
            slow.cancel()
            self._answered(index)

    def _limit(self) -> int:
        return self._prefetch.room(len(self._waiting) + sum(self._asked.values()))

    def _answered(self, index: int) -> None:
        if self._asked.pop(index, None):
            self.ask_again()

    def _learn(self) -> None:
        if self._finished:
            now = time.monotonic()
            self._prefetch.learn(self._finished, now - self._learnt_at)
            self._finished, self._learnt_at = 0, now


async def _heard(news: asyncio.Event, pause: float) -> None:
    """Wait for news, or for so long."""
    try:
        async with asyncio.timeout(pause):
            await news.wait()
    except TimeoutError:
        return
