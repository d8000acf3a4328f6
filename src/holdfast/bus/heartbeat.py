"""Heartbeats: leases are extended while handlers work, from a thread that no handler can starve."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from datetime import timedelta
from types import TracebackType
from typing import Self

from holdfast.bus.client import Bus
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Completion, Job

log = logging.getLogger(__name__)


class Heartbeat:
    """Extends every watched lease three times within its span, on connections of its own."""

    def __init__(self, bus: Bus, shortest: timedelta, loop: asyncio.AbstractEventLoop) -> None:
        self._partitions = bus.partitions.all
        self._backends = [partition.backend.fork() for partition in self._partitions]
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
        await asyncio.gather(*map(self._extend_on, range(len(self._backends))))

    async def _extend_on(self, index: int) -> None:
        backend, opened = self._backends[index], False
        while not await self._stopped():
            for lease, jobs in self._groups(index).items():
                try:
                    if not opened:
                        await backend.open()
                        opened = True
                    self._report_lost(jobs, await backend.leases.extend(jobs, lease))
                except STORE_ERRORS as error:
                    raise_if_cancelled(error)
                    self._partitions[index].count_error("extend", error)
                    known = isinstance(error, HoldfastError)
                    # the next beat comes before the deadline
                    log.warning("heartbeat failed: %s", error if known else repr(error), exc_info=not known)
        if opened:
            try:
                await backend.close()
            except STORE_ERRORS:
                log.warning("a connection of the heartbeat was not closed", exc_info=True)

    async def _stopped(self) -> bool:
        """Wait for the next beat. Returns True where the heartbeat ends instead."""
        try:
            async with asyncio.timeout(self._every):
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
