"""The runner: does operations, a few at once, and goes on where another runner died.

An operation is worked through chunk by chunk, each step durable before the next one. Before a chunk is
touched, the record says which items it has and the outcomes of the one before. So whoever goes on after a
crash knows which items may or may not have been done, looks at those, and counts each once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.correlation import correlated
from holdfast.deadletters.actions import GONE, Actions, Chunk, ItemOutcome
from holdfast.deadletters.items import Filter, parse_item
from holdfast.deadletters.operation import Checkpoint, Operation, OperationState, Request
from holdfast.deadletters.operations import CANCELLABLE, Operations, Unfinished, done_so_far
from holdfast.model.errors import HoldfastError, LockLost, NotFound, Transient
from holdfast.model.scopes import ADMIN, Scope
from holdfast.upkeep.lock import holding

log = logging.getLogger(__name__)

TTL = timedelta(seconds=30)
AT_ONCE, EACH = 4, 2
"""Operations that one process runs side by side, in all and of one asker."""
_FOLLOW, _LOOK = 0.5, 1.0
_SELDOM = 300
CHUNK = 1_000
_PATCHES = 100
"""A chunk of patches: each is a step of its own."""
_ROWS = 1_000
_CANCELLED = 10
"""Chunks of jobs that one step cancels: most of them have no record of their own."""
_PROBLEMS, _LONGEST = 10, 500
_STEP = 0.5

OnProgress = Callable[[Operation], None]


@dataclass(frozen=True, slots=True)
class RunClock:
    """How a run measures and spends time; a test passes its own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(slots=True)
class RateLimit:
    """Lets `rate` items through in each second; None: all of them."""

    rate: float | None
    clock: RunClock
    stop: asyncio.Event
    _next: float = 0.0

    def most(self, chunk: int) -> int:
        """How many to take at once, so that a second's worth is spread over that second."""
        return chunk if self.rate is None else max(1, min(chunk, int(self.rate)))

    async def acquire(self, count: int) -> None:
        """Wait until so many may go, or until `stop` is set."""
        if self.rate is None:
            return
        await self.wait(self._next - self.clock.now())
        self._next = max(self._next, self.clock.now()) + count / self.rate

    async def wait(self, seconds: float) -> None:
        """Wait that long, or until `stop` is set."""
        end = self.clock.now() + seconds
        while not self.stop.is_set() and (left := end - self.clock.now()) > 0:
            await self.clock.sleep(min(left, _STEP))


class Runner:
    """Runs operations in this process."""

    def __init__(
        self,
        operations: Operations,
        owner: str,
        *,
        clock: RunClock | None = None,
        chunk: int = CHUNK,
        ttl: timedelta = TTL,
    ) -> None:
        self.operations, self._ttl = operations, ttl
        self._owner, self._clock, self._chunk = owner, clock or RunClock(), chunk
        self._tasks: dict[Unfinished, asyncio.Task[bool]] = {}

    async def do(self, request: Request, actor: str, scopes: tuple[Scope, ...] = (ADMIN,)) -> Operation:
        """Ask for an operation and see it through, whoever runs it; returns how it ended."""
        return await self.follow((await self.operations.ask(request, actor, scopes)).id)

    async def follow(
        self, operation_id: str, *, stop: asyncio.Event | None = None, on_progress: OnProgress | None = None
    ) -> Operation:
        """Run it here, or watch whoever does, to its end. `stop` cancels it between two chunks."""
        while True:
            operation = await self.run(operation_id, stop=stop, on_progress=on_progress)
            if operation is None:
                operation = await self.operations.show(operation_id)
                if operation.active and stop is not None and stop.is_set():
                    return await self.operations.cancel(operation_id, operation.actor)
            if not operation.active:
                return operation
            if on_progress is not None:
                on_progress(operation)
            await self._clock.sleep(_FOLLOW)

    async def run(
        self, operation_id: str, *, stop: asyncio.Event | None = None, on_progress: OnProgress | None = None
    ) -> Operation | None:
        """Run it to its end here. None where somebody else runs it.

        Where a store does not answer, the error is raised and the operation stays `running`: the next runner
        goes on from the record.
        """
        store = await self.operations.first()
        async with holding(store, f"operation:{operation_id}", self._owner, self._ttl) as lock:
            if lock is None:
                return None
            mark = await self.operations.mark_of(operation_id)
            operation = await self.operations.show(operation_id)
            if not operation.active:
                return operation
            begun = replace(
                operation,
                state="running",
                started_at=operation.started_at or await store.now(),
                checkpoint=replace(operation.checkpoint, token=lock.token),
            )
            saved = await self.operations.save(begun)
            if saved is None:
                return await self.operations.show(operation_id)
            failpoints.hit("operation.after_lock")
            limit = RateLimit(saved.request.rate, self._clock, stop or asyncio.Event())
            with correlated(operation=operation_id):
                ended = await _Run(self.operations, saved, limit, self._chunk, on_progress).run()
            await self.operations.unmark(mark)
            return ended

    async def resume_all(self) -> int:
        """Run what waits or was left by whoever died, one after the other; returns how many ended here."""
        await self.operations.adopt()
        return sum([await self._try(mark.id) for mark in await self.operations.marks()])

    async def serve(self) -> None:
        """The same until cancelled, a few at once: one that takes its time keeps no other one waiting, and no
        asker has all places.

        What is cut off stays `running`, and is resumed by whoever looks next. Raises what keeps it from
        looking.
        """
        try:
            for turn in count():
                if turn % _SELDOM == 0:
                    await self.operations.adopt()
                self._tasks = {mark: task for mark, task in self._tasks.items() if not task.done()}
                for mark in await self.operations.marks():
                    taken = sum(each.actor == mark.actor for each in self._tasks)
                    if mark not in self._tasks and len(self._tasks) < AT_ONCE and taken < EACH:
                        self._tasks[mark] = asyncio.create_task(self._try(mark.id))
                await self._clock.sleep(_LOOK)
        finally:
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    @property
    def running(self) -> int:
        """How many `serve` runs at the moment."""
        return sum(not task.done() for task in self._tasks.values())

    async def _try(self, operation_id: str) -> bool:
        """Whether it ended here."""
        try:
            done = await self.run(operation_id)
        except (Transient, LockLost) as error:
            log.warning("operation %s will be resumed: %s", operation_id, error)
            return False
        except NotFound:
            await self.operations.forget(operation_id)
            return False
        if done is None or done.active:
            return False
        await self.operations.forget(operation_id)
        return True


class _Ended(Exception):
    """The operation has ended, and so does the run."""


class _Run:
    """Works one operation through, under its lock."""

    def __init__(
        self,
        operations: Operations,
        operation: Operation,
        limit: RateLimit,
        chunk: int,
        on_progress: OnProgress | None,
    ) -> None:
        self.operation = operation
        self._operations, self._letters = operations, operations.letters
        self._actions, self._rate, self._on_progress = Actions(operations.letters), limit, on_progress
        self._chunk = min(chunk, _PATCHES) if operation.kind == "patch" else chunk

    async def run(self) -> Operation:
        """Do all that is left of it; returns it as it ended."""
        try:
            try:
                await self._work()
            except (Transient, LockLost, _Ended):
                raise
            except Exception as error:  # whatever it is, it would come again at once, and for ever
                known = isinstance(error, HoldfastError)
                why = str(error) if known else repr(error)
                log.error("operation %s failed: %s", self.operation.id, why, exc_info=not known)
                await self._end("failed", f"{why}; {done_so_far(self.operation)}")
        except _Ended:
            return self.operation
        raise AssertionError("a run ends with _Ended")

    async def _work(self) -> None:
        match self.operation.kind:
            case "remove_consumer":
                await self._remove_consumer()
            case "empty_consumer":
                await self._empty_consumer()
            case _:
                await self._finish_chunk()
                await self._go_on()
        await self._end("done", done_so_far(self.operation))

    async def _end(self, state: OperationState, outcome: str) -> None:
        """Write down how it ended. Raises `_Ended`."""
        ended = replace(self.operation, state=state, outcome=outcome, ended_at=await self._now())
        if state == "done":  # nobody goes on with it, and it is kept for ever
            ended = replace(ended, checkpoint=Checkpoint(ended.checkpoint.token, ended.checkpoint.asked))
        await (await self._operations.audit()).ended(ended)
        failpoints.hit("operation.before_end")
        await self._save(ended)
        raise _Ended

    async def _finish_chunk(self) -> None:
        """Finish the chunk that another runner has left."""
        pending = [parse_item(each) for each in self.operation.checkpoint.pending]
        if pending:
            self.operation = _counted(self.operation, await self._actions.finish(self.operation, pending))

    async def _go_on(self) -> None:
        while True:
            await self._wait_for_canary()
            await self._check_stop()
            chunk = await self._actions.next_chunk(self.operation, self._limit())
            if chunk is None:
                return
            await self._rate.acquire(len(chunk.items))
            await self._check_stop()
            await self._save(_with_chunk(self.operation, chunk))
            failpoints.hit("operation.after_intent")
            outcomes = await self._actions.perform(self.operation, chunk.items)
            failpoints.hit("operation.after_act")
            self.operation = _counted(self.operation, outcomes)

    def _limit(self) -> int:
        limit, reached = self._rate.most(self._chunk), self.operation.checkpoint
        wanted = self.operation.request.options.canary
        return limit if wanted is None or reached.cleared else min(limit, wanted.size - len(reached.trying))

    async def _wait_for_canary(self) -> None:
        """Where all of the canary are on their way, wait until they have ended, and go on or stop."""
        wanted, reached = self.operation.request.options.canary, self.operation.checkpoint
        if wanted is None or reached.cleared or len(reached.trying) < wanted.size:
            return
        tried = reached.tried or await self._now()
        await self._save(replace(self.operation, checkpoint=replace(reached, tried=tried)))
        while (result := await self._actions.canary_result(self.operation, await self._now())) is None:
            await self._rate.wait(_LOOK)
            await self._check_stop()
            await self._save(self.operation)  # whoever cancelled it is noticed here
        passed, why = result
        if not passed:
            await self._end("stopped", f"{why}; {done_so_far(self.operation)}")
        self.operation = replace(self.operation, checkpoint=replace(self.operation.checkpoint, cleared=True))

    async def _remove_consumer(self) -> None:
        where = (self.operation.request.filter or Filter()).where
        for store in await self._letters.stores():
            over = False
            while not over:
                await self._check_stop()
                try:
                    step = await store.channels.remove_consumer(
                        where.channel or "", where.consumer or "", _ROWS
                    )
                except NotFound:
                    break
                failpoints.hit("operation.after_act")
                over, progress = step.done, self.operation.progress
                progress = progress.plus(step.jobs + step.dead + step.history, 0)
                await self._save(replace(self.operation, progress=progress))

    async def _empty_consumer(self) -> None:
        """Cancel as many jobs of each partition as waited there when this began. The record takes a step off
        before it is made: after a crash some jobs may stay, but none that was published since is cancelled in
        place of one that this has cancelled already."""
        where = (self.operation.request.filter or Filter()).where
        stores = await self._letters.stores()
        if not self.operation.checkpoint.left:
            left = [await self._waiting(store, where.channel or "", where.consumer or "") for store in stores]
            progress = replace(self.operation.progress, expected=sum(left), exact=True)
            self.operation = replace(_with_left(self.operation, left), progress=progress)
        left = list(self.operation.checkpoint.left)
        for number, store in enumerate(stores[: len(left)]):
            while (most := min(left[number], _CANCELLED * self._chunk)) > 0:
                await self._check_stop()
                left[number] -= most
                await self._save(_with_left(self.operation, left))
                failpoints.hit("operation.after_intent")
                try:
                    cancelled = await store.leases.cancel_waiting(
                        where.channel or "", where.consumer or "", most
                    )
                except NotFound:
                    cancelled = 0
                failpoints.hit("operation.after_act")
                left[number] = left[number] + most - cancelled if cancelled else 0
                progress = self.operation.progress.plus(cancelled, 0)
                self.operation = replace(_with_left(self.operation, left), progress=progress)

    async def _waiting(self, store: Backend, channel: str, consumer: str) -> int:
        """How many jobs wait on a partition."""
        try:
            states = (await store.channels.consumer_stats(channel, consumer)).states
        except NotFound:
            return 0
        return sum(count for state, count in states.items() if state in CANCELLABLE)

    async def _check_stop(self) -> None:
        if self._rate.stop.is_set():
            outcome = f"cancelled by {self.operation.actor}; {done_so_far(self.operation)}"
            await self._end("cancelled", outcome)

    async def _save(self, operation: Operation) -> None:
        """Make it durable, unless somebody else runs it by now or has cancelled it."""
        saved = await self._operations.save(operation)
        if saved is None:
            stored = await self._operations.show(operation.id)
            if stored.checkpoint.token != operation.checkpoint.token or stored.state != "cancelled":
                raise LockLost(f"operation:{operation.id}", operation.checkpoint.token)
            await self._leave(stored)
            raise _Ended
        self.operation = saved
        if self._on_progress is not None:
            self._on_progress(saved)

    async def _leave(self, stored: Operation) -> None:
        """It was cancelled: write down what was done so far, and nothing of what was only meant to be."""
        mine = self.operation
        by = stored.outcome.partition(";")[0]
        left = replace(
            stored,
            progress=mine.progress,
            problems=mine.problems,
            checkpoint=mine.checkpoint,
            outcome=f"{by}; {done_so_far(mine)}",
        )
        self.operation = await self._operations.save(left) or stored

    async def _now(self) -> datetime:
        return await (await self._operations.first()).now()


def _with_chunk(operation: Operation, chunk: Chunk) -> Operation:
    """What the record says before a chunk is touched."""
    before = _counted(operation, chunk.left_alone)
    pending = tuple(map(str, chunk.items))
    return replace(
        before, checkpoint=replace(before.checkpoint, source=chunk.source, after=chunk.after, pending=pending)
    )


def _with_left(operation: Operation, left: Sequence[int]) -> Operation:
    """With so many jobs of each partition that may still be cancelled."""
    return replace(operation, checkpoint=replace(operation.checkpoint, left=tuple(left)))


def _counted(operation: Operation, outcomes: Sequence[ItemOutcome]) -> Operation:
    """The operation with the outcomes of some more items."""
    reached = operation.checkpoint
    done = tuple(str(outcome.item) for outcome in outcomes if not outcome.problem)
    problems = tuple(_problem(outcome) for outcome in outcomes if outcome.problem not in ("", GONE))
    trying = operation.request.options.canary is not None and not reached.cleared
    return replace(
        operation,
        progress=operation.progress.plus(len(done), len(outcomes) - len(done)),
        problems=(operation.problems + problems)[:_PROBLEMS],
        checkpoint=replace(reached, pending=(), trying=reached.trying + done if trying else reached.trying),
    )


def _problem(outcome: ItemOutcome) -> str:
    """A problem as a record can hold it, whatever an error's text was."""
    return f"{outcome.item} {outcome.problem}"[:_LONGEST].encode("utf-8", "replace").decode()
