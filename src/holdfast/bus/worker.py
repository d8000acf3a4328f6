"""The worker runtime of one handler: fetch, run and settle at the same time, each in batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from holdfast import failpoints, tracing
from holdfast.bus.client import Bus
from holdfast.bus.handler import Handler
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.prefetch import MOST, Prefetch
from holdfast.bus.settlement import Failed
from holdfast.bus.settler import Settler
from holdfast.correlation import job_at_hand
from holdfast.model.decide import describe
from holdfast.model.duration import parse_duration
from holdfast.model.errors import HoldfastError, InvalidInput, Snooze, Terminal
from holdfast.model.job import Job, Retry

log = logging.getLogger(__name__)

_BREATH = 64  # handlers that never wait still let the loop breathe after so many jobs
_PATIENCE = 5.0  # how long a shutdown waits for a store that does not answer


class Worker:
    """Keeps a small buffer of leased jobs, runs the handler on them, and settles what it answers."""

    def __init__(self, bus: Bus, handler: Handler, heart: Heartbeat, lease: timedelta, idle: float) -> None:
        self.handler = handler
        self.settler = Settler(bus.settlement, heart, self._make_room)
        self._bus, self._heart, self._lease, self._idle = bus, heart, lease, idle
        self._prefetch = Prefetch(handler.concurrency, handler.prefetch)
        self._finished, self._learnt_at = 0, time.monotonic()
        self._pool = ThreadPoolExecutor(handler.concurrency) if handler.threaded else None
        self._call = handler.bind(self._pool)
        self._timeout = None if handler.timeout is None else handler.timeout.total_seconds()
        self._waiting: deque[Job] = deque()
        self._running: dict[int, asyncio.Task[None]] = {}
        self._gone: set[int] = set()
        self._news, self._room, self._work = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._stopping = asyncio.Event()
        self._runners: list[asyncio.Task[None]] = []
        self._fetching: asyncio.Task[None]

    def wake(self) -> None:
        """There may be new work."""
        self._news.set()

    def start(self) -> asyncio.Task[None]:
        """Begin; the task ends when the worker is drained."""
        self._runners = [asyncio.create_task(self._runner()) for _ in range(self.handler.concurrency)]
        self._fetching = asyncio.create_task(self._fetch_on())
        return self._fetching

    async def _fetch_on(self) -> None:
        while not self._stopping.is_set():
            self._news.clear()
            try:
                fetched = await self._fetch()
            except HoldfastError as error:
                log.warning("%s/%s: poll failed: %s", self.handler.channel, self.handler.consumer, error)
                fetched = 0
            if not fetched and not self._stopping.is_set():
                await self._doze()

    async def drain(self, grace: float) -> None:
        """Release what has not begun, let running handlers finish within `grace`, release the rest."""
        self._stopping.set()
        self._give_back(self._waiting)
        self._waiting.clear()
        for event in (self._news, self._room, self._work):
            event.set()
        # A claim that is on its way is waited for: cut short, it would leave leases that nobody holds.
        _, late = await asyncio.wait([self._fetching, *self._runners], timeout=grace)
        for task in late - {self._fetching}:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=_PATIENCE)
            self._fetching.cancel()
        await self.settler.close(_PATIENCE)
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def _fetch(self) -> int:
        """Lease the next batch while the last one is worked on."""
        while self._full() and not self._stopping.is_set():
            self._room.clear()
            await self._room.wait()
        if self._stopping.is_set():
            return 0
        if self._finished:
            now = time.monotonic()
            self._prefetch.learn(self._finished, now - self._learnt_at)
            self._finished, self._learnt_at = 0, now
        limit = max(self._prefetch.room(len(self._waiting)), 1)
        jobs = await self._bus.poll(self.handler.channel, self.handler.consumer, limit=limit)
        failpoints.hit("worker.after_claim")
        if self._stopping.is_set():
            self._give_back(jobs)
            return 0
        self._heart.watch(jobs, self._lease, self._lost)
        self._waiting.extend(jobs)
        self._work.set()
        return len(jobs)

    def _full(self) -> bool:
        return not self._prefetch.room(len(self._waiting)) or self.settler.pending > 4 * MOST

    async def _doze(self) -> None:
        try:
            async with asyncio.timeout(self._idle):
                await self._news.wait()
        except TimeoutError:
            return

    async def _runner(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - runners are tasks
        done = 0
        while True:
            while not self._waiting:
                if self._stopping.is_set():
                    return
                self._work.clear()
                await self._work.wait()
            job = self._waiting.popleft()
            if self._prefetch.room(len(self._waiting)):
                self._make_room()
            await self._attempt(job, task)
            done += 1
            self._finished += 1
            if done % _BREATH == 0:
                await asyncio.sleep(0)

    async def _attempt(self, job: Job, task: asyncio.Task[None]) -> None:
        """Run the handler once and hand its answer to the settler."""
        self._running[id(job)] = task
        settler = self.settler
        outside = job_at_hand.set(job)
        try:
            failpoints.hit("worker.mid_handler")
            if self._timeout is None and tracing.tracer() is None:
                await self._call(job)
            else:
                with tracing.handling(job):
                    async with asyncio.timeout(self._timeout):
                        await self._call(job)
            failpoints.hit("worker.after_effect")
            settler.done.append(job)
        except asyncio.CancelledError as error:
            # A shutdown releases, it does not fail. A lost lease has nothing left to settle. And what
            # nobody asked for is the handler's own doing.
            if not task.cancelling():
                self._refused(job, error)
            elif id(job) not in self._gone:
                self._give_back([job])
                raise
        except Exception as error:
            self._refused(job, error)
        finally:
            job_at_hand.reset(outside)
            del self._running[id(job)]
            if id(job) in self._gone:
                self._gone.remove(id(job))
                task.uncancel()
        settler.kick()

    def _refused(self, job: Job, error: BaseException) -> None:
        """What a handler raised, as an answer."""
        if isinstance(error, Snooze):
            try:
                self.settler.back.append(Retry(job, parse_duration(error.delay, what="snooze")))
                return
            except InvalidInput as unusable:
                error = unusable
        self.settler.failed.append(Failed(job, describe(error), isinstance(error, Terminal)))

    def _lost(self, job: Job) -> None:
        """The heartbeat was refused: somebody else may have this job now."""
        self._heart.forget([job])
        if job in self._waiting:
            self._waiting.remove(job)
        elif (task := self._running.get(id(job))) is not None:
            log.warning("lease lost on job %s while its handler runs: cancelling it", job.id)
            self._gone.add(id(job))
            task.cancel()

    def _give_back(self, jobs: Iterable[Job]) -> None:
        self.settler.back.extend([Retry(job, None) for job in jobs])
        self.settler.kick()

    def _make_room(self) -> None:
        self._room.set()
