"""The worker runtime of one handler: fetch, run and settle at the same time, each in batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast import failpoints, tracing
from holdfast.bus.answers import Answers
from holdfast.bus.bench import Bench, Threads
from holdfast.bus.client import Bus
from holdfast.bus.handler import Handler
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.prefetch import MOST
from holdfast.bus.supply import Supply
from holdfast.correlation import job_at_hand
from holdfast.model.job import Job
from holdfast.model.policy import Policy

log = logging.getLogger(__name__)

_BREATH = 64  # handlers that never wait still let the loop breathe after so many jobs
_PATIENCE = 5.0  # how long a shutdown waits for a store that does not answer


class Worker:
    """Keeps a small buffer of leased jobs, runs the handler on them, and settles what it answers."""

    def __init__(self, bus: Bus, handler: Handler, heart: Heartbeat, policy: Policy, idle: float) -> None:
        self.handler = handler
        self._heart, self._policy = heart, policy
        self._answers = Answers(bus, heart, self._settled)
        self._threads = Threads(handler.concurrency) if handler.threaded else None
        self._timeout = None if handler.timeout is None else handler.timeout.total_seconds()
        self._waiting: deque[Job] = deque()
        self._supply = Supply(bus, handler, idle, self._waiting, self._take, self._refuses)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._gone: set[int] = set()
        self._stuck: set[asyncio.Task[None]] = set()
        self._work, self._stopping = asyncio.Event(), False
        self._runners: list[asyncio.Task[None]] = []
        self._polling: list[asyncio.Task[None]] = []

    def wake(self, store: int) -> None:
        """A store may have new work."""
        self._supply.wake(store)

    def start(self) -> asyncio.Future[None]:
        """Begin. The answer is an error of the worker itself, should there be one."""
        failed = asyncio.get_running_loop().create_future()

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
                failed.set_exception(error)

        self._runners = [asyncio.create_task(self._runner()) for _ in range(self.handler.concurrency)]
        self._polling = self._supply.start()
        for task in (*self._runners, *self._polling):
            task.add_done_callback(ended)
        return failed

    async def drain(self, grace: float) -> None:
        """Release what has not begun, let running handlers finish within `grace`, release the rest."""
        self._stopping = True
        self._supply.stop()
        self._work.set()
        for task in self._stuck:
            task.cancel()
        # A claim that is on its way is waited for: it would take again what is released before it, and cut
        # short, it would leave leases that nobody holds.
        await asyncio.wait(self._polling, timeout=min(grace, _PATIENCE))
        self._empty()
        _, late = await asyncio.wait([*self._polling, *self._runners], timeout=grace)
        for task in late.difference(self._polling):
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=_PATIENCE)
            for task in late:
                task.cancel()
        await self._answers.close(_PATIENCE)
        if self._threads is not None:
            self._threads.close()

    def _take(self, jobs: list[Job]) -> None:
        if self._stopping or self._blocked:
            self._answers.give_back(jobs)
            return
        self._heart.watch(jobs, self._policy.lease, self._lost)
        self._waiting.extend(jobs)
        self._work.set()

    def _refuses(self, store: int) -> bool:
        return self._answers.pending(store) > 4 * MOST or self._blocked

    @property
    def _blocked(self) -> bool:
        return len(self._stuck) == self.handler.concurrency

    def _settled(self, store: int) -> None:
        self._supply.ask_again()
        if self._policy.ordered:  # it may have held back the next of its key
            self._supply.wake(store)

    async def _runner(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - runners are tasks
        bench = None if self._threads is None else Bench(self._threads)
        call = self.handler.bind(bench)
        done = 0
        while not self._stopping:
            if not self._waiting:
                self._work.clear()
                await self._work.wait()
                continue
            job = self._waiting.popleft()
            self._supply.begun()
            await self._attempt(job, task, call)
            if bench is not None and bench.busy and not self._stopping:
                await self._freed(bench, task)
            done += 1
            self._supply.finished()
            if done % _BREATH == 0:
                await asyncio.sleep(0)

    async def _attempt(
        self, job: Job, task: asyncio.Task[None], call: Callable[[Job], Awaitable[object]]
    ) -> None:
        """Run the handler once and hand its answer to the settler."""
        self._running[id(job)] = task
        outside = job_at_hand.set(job)
        try:
            failpoints.hit("worker.mid_handler")
            if self._timeout is None and tracing.tracer() is None:
                await call(job)
            else:
                with tracing.handling(job):
                    async with asyncio.timeout(self._timeout):
                        await call(job)
            failpoints.hit("worker.after_effect")
            self._answers.done(job)
        except asyncio.CancelledError as error:
            # A shutdown releases, it does not fail. A lost lease has nothing left to settle. And what
            # nobody asked for is the handler's own doing.
            if not task.cancelling():
                self._answers.refused(job, error)
            elif id(job) not in self._gone:
                self._answers.give_back([job])
                raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a handler that exits, say, answers for its own job only
            self._answers.refused(job, error)
        finally:
            job_at_hand.reset(outside)
            del self._running[id(job)]
            if id(job) in self._gone:
                self._gone.remove(id(job))
                task.uncancel()

    async def _freed(self, bench: Bench, task: asyncio.Task[None]) -> None:
        """Wait for a handler that goes on in its thread although its attempt is over."""
        log.warning(
            "%s/%s: a handler goes on after its timeout or its lease; its thread takes no job before it ends",
            *(self.handler.channel, self.handler.consumer),
        )
        self._stuck.add(task)
        if self._blocked:
            self._empty()  # nobody here will begin them soon
        try:
            await bench.free()
        finally:
            self._stuck.discard(task)
            self._supply.ask_again()

    def _lost(self, job: Job) -> None:
        """The heartbeat was refused: somebody else may have this job now."""
        self._heart.forget([job])
        if job in self._waiting:
            self._waiting.remove(job)
        elif (task := self._running.get(id(job))) is not None:
            log.warning("lease lost on job %s while its handler runs: cancelling it", job.id)
            self._gone.add(id(job))
            task.cancel()

    def _empty(self) -> None:
        self._answers.give_back(self._waiting)
        self._waiting.clear()
