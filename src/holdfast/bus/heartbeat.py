"""Heartbeats: leases are extended while handlers work, from a thread that no handler can starve."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import timedelta
from types import TracebackType
from typing import Self

from holdfast.bus.client import Bus
from holdfast.bus.partitions import Partition
from holdfast.contracts import STORE_ERRORS, Backend, raise_if_cancelled
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Completion, Job

log = logging.getLogger(__name__)

_PATIENCE = 0.25  # of the time between two beats
_AGAIN = 1.0  # second after a failed one, since the deadline comes nearer


class Heartbeat:
    """Extends every watched lease three times within its span."""

    def __init__(self, bus: Bus, shortest: timedelta, loop: asyncio.AbstractEventLoop) -> None:
        self._partitions = bus.partitions.all
        self._every = shortest.total_seconds() / 3
        self._home = loop
        # By object: a worker may claim a job again while the handler that lost it still runs.
        self._held: dict[int, tuple[Job, timedelta, Callable[[Job], None]]] = {}
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        await asyncio.to_thread(self._thread.join)  # a silent store may hold it up, but not the whole loop

    def watch(self, jobs: Iterable[Job], lease: timedelta, on_lost: Callable[[Job], None]) -> None:
        """Extend these leases from now on; `on_lost` is called on the handlers' loop when one is gone."""
        for job in jobs:
            self._held[id(job)] = (job, lease, on_lost)

    def forget(self, jobs: Iterable[Job]) -> None:
        """Extend the leases of these jobs no more: they have ended."""
        for job in jobs:
            self._held.pop(id(job), None)

    def _run(self) -> None:
        with closing(self._loop) as loop:
            loop.run_until_complete(self._beat())

    async def _beat(self) -> None:
        """Extend the leases of each store in a loop of its own: a slow one holds up no other."""
        await asyncio.gather(*map(self._extend_on, range(len(self._partitions))))

    async def _extend_on(self, index: int) -> None:
        beat = _Beat(self._partitions[index], self._home, self._every * _PATIENCE)
        pause = self._every
        while not await self._stopped(pause):
            pause = self._every
            for lease, jobs in self._groups(index).items():
                try:
                    self._report_lost(jobs, await beat.extend(jobs, lease))
                except STORE_ERRORS as error:
                    raise_if_cancelled(error)
                    self._partitions[index].count_error("extend", error)
                    known = isinstance(error, HoldfastError)
                    # the next beat comes before the deadline
                    log.warning("heartbeat failed: %s", error if known else repr(error), exc_info=not known)
                    pause = min(self._every, _AGAIN)
        await beat.close()

    async def _stopped(self, pause: float) -> bool:
        """Wait for the next beat. Returns True where the heartbeat ends instead."""
        try:
            async with asyncio.timeout(pause):
                return await self._stop.wait()
        except TimeoutError:
            return False

    def _groups(self, index: int) -> dict[timedelta, list[Job]]:
        groups: dict[timedelta, list[Job]] = {}
        for job, lease, _ in list(self._held.values()):
            if job.partition == index and job.completion is not Completion.DONE:
                groups.setdefault(lease, []).append(job)
        return groups

    def _report_lost(self, jobs: list[Job], accepted: list[bool]) -> None:
        for job, yes in zip(jobs, accepted, strict=True):
            entry = self._held.get(id(job))
            # A job that ended meanwhile is no loss, nor is one that a transaction completes.
            if not yes and entry is not None and job.completion in (Completion.NONE, Completion.BEGUN):
                self._home.call_soon_threadsafe(entry[2], job)


class _Beat:
    """Extends leases of one store: on the handlers' loop, by the connections that are there; on one of its
    own where a handler keeps that loop from going round."""

    def __init__(self, partition: Partition, home: asyncio.AbstractEventLoop, patience: float) -> None:
        self._backend, self._home, self._patience = partition.backend, home, patience
        self._own: Backend | None = None
        self._asked: asyncio.Future[list[bool]] | None = None

    async def extend(self, jobs: Sequence[Job], lease: timedelta) -> list[bool]:
        """Extend leases. Returns, per job, whether it is still held."""
        if self._asked is None or self._asked.done():
            asking = self._backend.leases.extend(jobs, lease)
            self._asked = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._home))
            self._asked.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
            # Not cancelled where it takes too long: it hurts nobody if it comes late.
            await asyncio.wait([self._asked], timeout=self._patience)
            if self._asked.done():
                await self.close()
                return self._asked.result()
        return await self._extend_alone(jobs, lease)

    async def _extend_alone(self, jobs: Sequence[Job], lease: timedelta) -> list[bool]:
        if self._own is None:
            own = self._backend.fork()
            await own.open()
            self._own = own
        return await self._own.leases.extend(jobs, lease)

    async def close(self) -> None:
        """Give the connection of its own back, if there is one."""
        own, self._own = self._own, None
        if own is not None:
            try:
                await own.close()
            except STORE_ERRORS:
                log.warning("a connection of the heartbeat was not closed", exc_info=True)
