"""The worker of one handler: it fetches, runs and finalizes jobs at the same time, each in batches."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast import failpoints, tracing
from holdfast.bus.client import Bus
from holdfast.bus.finalize import CANCELLED, FinalizeQueues
from holdfast.bus.handler import Handler, Threads, ThreadSlot
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.partitions import Partition
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.correlation import current_job
from holdfast.model.backoff import backoff_seconds
from holdfast.model.errors import HoldfastError
from holdfast.model.job import Job, JobRecord
from holdfast.model.policy import Policy
from holdfast.model.states import State

log = logging.getLogger(__name__)

MAX_PREFETCH = 500
_SECONDS_AHEAD = 0.25
_GROWTH = 8
_POLL_PAUSES = 0.1, 1.0  # between polls that fail, whatever the reason, and whoever wakes us
_SLOW_POLL = 0.5  # a store that has not returned by then no longer keeps the others from being polled
_TURN = 64  # handlers that never wait still let the loop run others after so many jobs
_SLOW_LOOK = 2.0  # how long a handler whose lease is lost goes on while the store is asked why
_SLOW_END = 5.0  # a handler that goes on for so long after it was cancelled is reported
_PATIENCE = 5.0  # how long a shutdown waits for a store that does not answer


class Worker:
    """Keeps a small buffer of leased jobs, runs the handler on them, and finalizes them in batches."""

    def __init__(self, bus: Bus, handler: Handler, heart: Heartbeat, policy: Policy, idle: float) -> None:
        self.handler = handler
        self._bus, self._heart, self._policy = bus, heart, policy
        self._finalize = FinalizeQueues(
            bus.finalizer, len(bus.partitions.all), heart.forget, self._on_finalized
        )
        self._threads = Threads(handler.concurrency) if handler.threaded else None
        self._timeout = None if handler.timeout is None else handler.timeout.total_seconds()
        self._waiting: deque[Job] = deque()
        self._fetcher = Fetcher(bus, handler, idle, self._waiting, self._take, self._refuses)
        self._running: dict[int, tuple[Job, asyncio.Task[None]]] = {}
        self._lost_while_running: set[int] = set()
        self._looks: set[asyncio.Task[None]] = set()
        self._stuck: set[asyncio.Task[None]] = set()
        self._work, self._stopping = asyncio.Event(), False
        self._begun_in_turn, self._turn = 0, max(_TURN, handler.concurrency)
        self._plain = False
        self._runners: list[asyncio.Task[None]] = []
        self._polling: list[asyncio.Task[None]] = []

    def wake(self, store: int) -> None:
        """A store may have new work."""
        self._fetcher.wake(store)

    def look_at(self, store: int, job_id: str) -> None:
        """A job may have been cancelled: ask the store, where it is here. Without an id: any that runs."""
        running = [job for job, _ in self._running.values()]
        for job in [*self._waiting, *running] if job_id else running:
            if job.partition == store and job_id in ("", job.id):
                self._look(job, lost=False)

    def start(self) -> asyncio.Future[None]:
        """Start. Returns a future that gets an error of the worker itself, should there be one."""
        failed = asyncio.get_running_loop().create_future()

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
                failed.set_exception(error)

        self._runners = [asyncio.create_task(self._runner()) for _ in range(self.handler.concurrency)]
        self._polling = self._fetcher.start()
        for task in (*self._runners, *self._polling):
            task.add_done_callback(ended)
        return failed

    async def drain(self, grace: float) -> None:
        """Release what has not begun, let running handlers finish within `grace`, release the rest."""
        self._stopping = True
        self._fetcher.stop()
        self._work.set()
        for task in self._stuck:
            task.cancel()
        # A claim that is on its way is waited for: it would take again what is released before it, and cut
        # short, it would leave leases that nobody holds.
        await asyncio.wait(self._polling, timeout=min(grace, _PATIENCE))
        self._release_waiting()
        _, late = await asyncio.wait([*self._polling, *self._runners], timeout=grace)
        for task in late.difference(self._polling):
            task.cancel()
        if late:
            _, late = await asyncio.wait(late, timeout=_PATIENCE)
            for task in late:
                task.cancel()
        for look in self._looks:
            look.cancel()
        await self._finalize.close(_PATIENCE)
        if self._threads is not None:
            self._threads.close()

    def _take(self, jobs: list[Job]) -> None:
        if self._stopping or self._blocked:
            self._finalize.release(jobs)
            return
        self._heart.watch(jobs, self._policy.lease, self._lost)
        self._waiting.extend(jobs)
        self._work.set()

    def _refuses(self, store: int) -> bool:
        return self._finalize.pending(store) > 4 * MAX_PREFETCH or self._blocked

    @property
    def _blocked(self) -> bool:
        return len(self._stuck) == self.handler.concurrency

    def _on_finalized(self, store: int) -> None:
        self._fetcher.look_again()
        if self._policy.ordered:  # it may have held back the next of its key
            self._fetcher.wake(store)

    async def _runner(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - runners are tasks
        thread = None if self._threads is None else ThreadSlot(self._threads)
        call = self.handler.bind(thread)
        while not self._stopping:
            if not self._waiting:
                self._work.clear()
                await self._work.wait()
                continue
            if self._begun_in_turn >= self._turn:
                await asyncio.sleep(0)
                continue
            if not self._begun_in_turn:
                task.get_loop().call_soon(self._next_turn)
                # Once a turn: a look for a tracer costs as much as all else around a quick handler.
                self._plain = self._timeout is None and tracing.tracer() is None
            self._begun_in_turn += 1
            job = self._waiting.popleft()
            self._fetcher.begun()
            await self._attempt(job, task, call)
            if thread is not None and thread.busy and not self._stopping:
                await self._wait_for_thread(thread, task)
            self._fetcher.finished()

    def _next_turn(self) -> None:
        """The event loop has gone round, and all that had to be read was."""
        self._begun_in_turn = 0

    async def _attempt(
        self, job: Job, task: asyncio.Task[None], call: Callable[[Job], Awaitable[object]]
    ) -> None:
        """Run the handler once and queue the job for finalizing."""
        self._running[id(job)] = job, task
        outside = current_job.set(job)
        try:
            failpoints.hit("worker.mid_handler")
            if self._plain:
                await call(job)
            else:
                with tracing.handling(job):
                    async with asyncio.timeout(self._timeout):
                        await call(job)
            failpoints.hit("worker.after_effect")
            self._ended(job, None)
        except asyncio.CancelledError as error:
            # A shutdown releases, it does not fail. A lost lease has nothing left to finalize. And a
            # cancellation that nobody asked for is the handler's own doing.
            if not task.cancelling():
                self._ended(job, error)
            elif id(job) not in self._lost_while_running:
                self._finalize.release([job])
                raise
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a handler that calls sys.exit() fails its own job only
            self._ended(job, error)
        finally:
            current_job.reset(outside)
            del self._running[id(job)]
            if id(job) in self._lost_while_running:
                self._lost_while_running.remove(id(job))
                task.uncancel()

    def _ended(self, job: Job, error: BaseException | None) -> None:
        """Queue a job for finalizing, by what its handler raised. One that was cancelled is over already."""
        if job.cancelled and id(job) in self._lost_while_running:
            log.info("%s/%s: the handler of job %s, which was cancelled, ended: %r", *_about(job), error)
        elif error is None:
            self._finalize.done(job)
        else:
            self._finalize.failed(job, error)

    async def _wait_for_thread(self, thread: ThreadSlot, task: asyncio.Task[None]) -> None:
        """Wait for a handler that goes on in its thread although its attempt is over."""
        log.warning(
            "%s/%s: a handler goes on after its timeout or its lease; its thread takes no job before it ends",
            *(self.handler.channel, self.handler.consumer),
        )
        self._stuck.add(task)
        if self._blocked:
            self._release_waiting()  # nobody here will begin them soon
        try:
            await thread.free()
        finally:
            self._stuck.discard(task)
            self._fetcher.look_again()

    def _lost(self, job: Job) -> None:
        """The heartbeat was refused: somebody else may have this job now, or it was cancelled."""
        self._heart.forget([job])
        if job in self._waiting:
            self._waiting.remove(job)
        elif id(job) in self._running:
            self._look(job, lost=True)

    def _look(self, job: Job, *, lost: bool) -> None:
        look = asyncio.create_task(self._end_early(job, lost=lost))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _end_early(self, job: Job, *, lost: bool) -> None:
        """Begin a job no more, or cancel its handler, where the store says that it was cancelled; also
        without that where its lease is lost."""
        record = await self._record(job)
        waits, running = job in self._waiting, self._running.get(id(job))
        if id(job) in self._lost_while_running or not (waits or running):
            return  # it has ended meanwhile, and its refused answer is reported
        if record is not None and (record.state, record.token) == (State.CANCELLED, job.token):
            job.cancelled = True
            self._bus.counters.ended([job], [CANCELLED], [True])
            who, why = record.cancelled_by or "somebody", record.reason or "no reason was given"
            log.info("%s/%s: job %s was cancelled by %s: %s", *_about(job), who, why)
            self._on_finalized(job.partition)
        elif not lost:
            return
        elif running:
            log.warning("lease lost on job %s while its handler runs: cancelling it", job.id)
        self._heart.forget([job])
        if running is None:
            self._waiting.remove(job)
            return
        self._lost_while_running.add(id(job))
        running[1].cancel()
        asyncio.get_running_loop().call_later(_SLOW_END, self._report_slow_end, job)

    def _report_slow_end(self, job: Job) -> None:
        if id(job) in self._running:
            log.warning(
                "%s/%s: the handler of job %s goes on although it was cancelled; no other job gets its place",
                *_about(job),
            )

    async def _record(self, job: Job) -> JobRecord | None:
        """Return what the store has of a job; None where it does not return it in time."""
        try:
            async with asyncio.timeout(_SLOW_LOOK):
                leases = self._bus.partitions.all[job.partition].backend.leases
                return await leases.job(job.channel, job.consumer, job.id)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("it is not known whether job %s was cancelled: %r", job.id, error)
            return None

    def _release_waiting(self) -> None:
        self._finalize.release(self._waiting)
        self._waiting.clear()


class Fetcher:
    """Leases the next jobs while the last ones are worked on.

    Each store is polled in a loop of its own: one that hangs, or fails, holds up no other. `take` gets what
    was leased; while `refuse` returns True, a store is not polled.
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
        """Return the polling tasks, which end after `stop`."""
        return [asyncio.create_task(self._poll_on(each)) for each in self._bus.partitions.all]

    def stop(self) -> None:
        """Poll no more. What is on its way still comes."""
        self._stop.set()
        self._room.set()
        for index in range(len(self._news)):
            self.wake(index)

    def wake(self, index: int) -> None:
        """A store may have new work."""
        self._news[index].set()

    def begun(self) -> None:
        """A job has left those that wait."""
        if not self._room.is_set() and self._prefetch.room(len(self._waiting)):
            self._room.set()

    def finished(self) -> None:
        """A job has ended."""
        self._finished += 1

    def look_again(self) -> None:
        """Look again whether there is room, or no refusal any more."""
        self._room.set()

    async def _poll_on(self, partition: Partition) -> None:
        """Poll until stopped, whatever the store raises: then again after a pause that doubles."""
        news, failures = self._news[partition.index], 0
        while not self._stop.is_set():
            await asyncio.sleep(0)  # those who waited for room come first
            news.clear()
            try:
                jobs = await self._poll(partition)
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                self._log(error, failures)
                failures += 1
                await _wait(self._stop, backoff_seconds(failures, *_POLL_PAUSES))
                continue
            failures = 0
            if jobs is None:
                return
            failpoints.hit("worker.after_claim")
            self._take(jobs)
            if not jobs and not self._stop.is_set():
                await _wait(news, self._idle)

    def _log(self, error: BaseException, failures: int) -> None:
        """Log an error; an undocumented one with its traceback, the first time in a row."""
        known = isinstance(error, HoldfastError)
        log.warning(
            "%s/%s: poll failed: %s",
            *(self._handler.channel, self._handler.consumer, error if known else repr(error)),
            exc_info=None if known or failures else error,
        )

    async def _poll(self, partition: Partition) -> list[Job] | None:
        """Return what was leased; None once stopped."""
        index = partition.index
        await self._bus.partitions.ready(partition)
        while (not self._limit() or self._refuse(index)) and not self._stop.is_set():
            self._room.clear()
            await self._room.wait()
        if self._stop.is_set():
            return None
        self._learn()
        self._asked[index] = limit = max(self._limit(), 1)
        slow = asyncio.get_running_loop().call_later(_SLOW_POLL, self._returned, index)
        try:
            return await self._bus.poll_at(
                partition, self._handler.channel, self._handler.consumer, limit=limit
            )
        finally:
            slow.cancel()
            self._returned(index)

    def _limit(self) -> int:
        return self._prefetch.room(len(self._waiting) + sum(self._asked.values()))

    def _returned(self, index: int) -> None:
        if self._asked.pop(index, None):
            self.look_again()

    def _learn(self) -> None:
        if self._finished:
            now = time.monotonic()
            self._prefetch.learn(self._finished, now - self._learnt_at)
            self._finished, self._learnt_at = 0, now


class Prefetch:
    """How many jobs to lease ahead: what the handlers finish in a quarter of a second, within bounds.

    Many, while handlers are quick, since large batches make a queue fast; few, while they are slow, since
    a job that waits in one process cannot be worked on by another.
    """

    def __init__(self, concurrency: int, fixed: int | None = None) -> None:
        self._least = min(concurrency, MAX_PREFETCH) if fixed is None else fixed
        self._most = MAX_PREFETCH if fixed is None else fixed
        self.size = self._least

    def room(self, waiting: int) -> int:
        """Return how many to lease while `waiting` jobs wait: up to a fixed size, or a whole batch ahead."""
        if waiting >= self.size:
            return 0
        return self.size - waiting if self._least == self._most else self.size

    def learn(self, finished: int, seconds: float) -> None:
        """Adapt to `finished` jobs in so many seconds."""
        wanted = int(_SECONDS_AHEAD * finished / max(seconds, 1e-6))
        step = min(max(wanted, self.size // 2), self.size * _GROWTH)
        self.size = min(max(step, self._least), self._most)


def _about(job: Job) -> tuple[str, str, str]:
    return job.channel, job.consumer, job.id


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but no longer than this."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
