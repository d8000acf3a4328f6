"""Heartbeats: leases go on while handlers work, from a thread that no handler can starve."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Self

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Job

log = logging.getLogger(__name__)


class Heartbeat:
    """Extends every watched lease three times within its span, on connections of its own."""

    def __init__(self, bus: Bus, shortest: timedelta, loop: asyncio.AbstractEventLoop) -> None:
        self._backends = [partition.backend.fork() for partition in bus.partitions.all]
        self._every = shortest.total_seconds() / 3
        self._home = loop
        # By object: a worker may claim a job again while the handler that lost it still runs.
        self._held: dict[int, tuple[Job, timedelta, Callable[[Job], None]]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="holdfast-heartbeat", daemon=True)

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join)  # a silent store may hold it up, but not the whole loop

    def watch(self, jobs: Iterable[Job], lease: timedelta, on_lost: Callable[[Job], None]) -> None:
        """Keep these leases alive; `on_lost` is called on the home loop when one is gone."""
        for job in jobs:
            self._held[id(job)] = (job, lease, on_lost)

    def forget(self, jobs: Iterable[Job]) -> None:
        """These jobs have ended."""
        for job in jobs:
            self._held.pop(id(job), None)

    def _beat(self) -> None:
        with asyncio.Runner() as runner:
            opened: set[int] = set()
            while not self._stop.wait(self._every):
                runner.run(self._extend_all(opened))
            for index in opened:
                runner.run(self._backends[index].close())

    async def _extend_all(self, opened: set[int]) -> None:
        held = list(self._held.values())
        groups: dict[tuple[int, timedelta], list[Job]] = {}
        for job, lease, _ in held:
            groups.setdefault((job.partition, lease), []).append(job)
        for (index, lease), jobs in groups.items():
            try:
                backend = await self._opened(index, opened)
                accepted = await backend.extend(jobs, lease)
            except HoldfastError as error:
                log.warning("heartbeat failed: %s", error)  # the next beat comes before the deadline
                continue
            self._tell([job for job, answer in zip(jobs, accepted, strict=True) if not answer])

    async def _opened(self, index: int, opened: set[int]) -> Backend:
        if index not in opened:
            await self._backends[index].open()
            opened.add(index)
        return self._backends[index]

    def _tell(self, lost: list[Job]) -> None:
        for job in lost:
            entry = self._held.get(id(job))
            if entry is not None:  # a job that ended meanwhile is no loss
                self._home.call_soon_threadsafe(entry[2], job)
