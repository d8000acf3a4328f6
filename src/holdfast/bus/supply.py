"""The supply of a worker: leases the next jobs while the last ones are worked on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

from holdfast import failpoints
from holdfast.bus.client import Bus
from holdfast.bus.handler import Handler
from holdfast.bus.partitions import Partition
from holdfast.bus.prefetch import Prefetch
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Job

log = logging.getLogger(__name__)

_AGAIN = 1.0  # a poll that failed is still owed to whoever woke us: it does not wait for the idle poll
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
        self._stopping = False

    def start(self) -> list[asyncio.Task[None]]:
        """Begin; the tasks end after `stop`."""
        return [asyncio.create_task(self._poll_on(each)) for each in self._bus.partitions.all]

    def stop(self) -> None:
        """Ask for nothing more. What is on its way still comes."""
        self._stopping = True
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
        news = self._news[partition.index]
        while not self._stopping:
            await asyncio.sleep(0)  # whoever waited for room comes first
            news.clear()
            leased, pause = 0, self._idle
            try:
                leased = await self._poll(partition)
            except HoldfastError as error:
                log.warning("%s/%s: poll failed: %s", self._handler.channel, self._handler.consumer, error)
                pause = min(pause, _AGAIN)
            if not leased and not self._stopping:
                await _heard(news, pause)

    async def _poll(self, partition: Partition) -> int:
        index = partition.index
        await self._bus.partitions.ready(partition)
        while (not self._limit() or self._refuse(index)) and not self._stopping:
            self._room.clear()
            await self._room.wait()
        if self._stopping:
            return 0
        self._learn()
        self._asked[index] = limit = max(self._limit(), 1)
        slow = asyncio.get_running_loop().call_later(_SLOW, self._answered, index)
        try:
            jobs = await self._bus.poll_at(
                partition, self._handler.channel, self._handler.consumer, limit=limit
            )
        finally:
            slow.cancel()
            self._answered(index)
        failpoints.hit("worker.after_claim")
        self._take(jobs)
        return len(jobs)

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
