"""The runner: does operations, one at a time each, whoever runs them; goes on where another one died."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import timedelta
from itertools import count

from holdfast import failpoints
from holdfast.correlation import correlated
from holdfast.deadletters.operation import Operation, Request
from holdfast.deadletters.operations import Mark, Operations, done_so_far
from holdfast.deadletters.pace import Clock, Pace
from holdfast.deadletters.run import CHUNK, Ended, Run, Tell
from holdfast.model.errors import HoldfastError, LockLost, NotFound, Transient
from holdfast.model.scopes import ADMIN, Scope
from holdfast.upkeep.holding import holding

log = logging.getLogger(__name__)

TTL = timedelta(seconds=30)
AT_ONCE, EACH = 4, 2
"""Operations that one process runs side by side, in all and of one asker."""
_FOLLOW, _LOOK = 0.5, 1.0
_SELDOM = 300


class Runner:
    """Runs operations in this process."""

    def __init__(
        self,
        operations: Operations,
        owner: str,
        *,
        clock: Clock | None = None,
        chunk: int = CHUNK,
        ttl: timedelta = TTL,
    ) -> None:
        self.operations, self._ttl = operations, ttl
        self._owner, self._clock, self._chunk = owner, clock or Clock(), chunk
        self._tasks: dict[Mark, asyncio.Task[bool]] = {}

    async def do(self, request: Request, actor: str, scopes: tuple[Scope, ...] = (ADMIN,)) -> Operation:
        """Ask for an operation and see it through, whoever runs it; answers how it ended."""
        return await self.follow((await self.operations.ask(request, actor, scopes)).id)

    async def follow(
        self, operation_id: str, *, stop: asyncio.Event | None = None, tell: Tell | None = None
    ) -> Operation:
        """Run it here, or watch whoever does, to its end. `stop` cancels it between two chunks."""
        while True:
            operation = await self.run(operation_id, stop=stop, tell=tell)
            if operation is None:
                operation = await self.operations.show(operation_id)
                if operation.active and stop is not None and stop.is_set():
                    return await self.operations.cancel(operation_id, operation.actor)
            if not operation.active:
                return operation
            if tell is not None:
                tell(operation)
            await self._clock.sleep(_FOLLOW)

    async def run(
        self, operation_id: str, *, stop: asyncio.Event | None = None, tell: Tell | None = None
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
                stand=replace(operation.stand, token=lock.token),
            )
            saved = await self.operations.save(begun)
            if saved is None:
                return await self.operations.show(operation_id)
            failpoints.hit("operation.after_lock")
            pace = Pace(saved.request.rate, self._clock, stop or asyncio.Event())
            with correlated(operation=operation_id):
                ended = await self._work(Run(self.operations, saved, pace, self._chunk, tell))
            await self.operations.unmark(mark)
            return ended

    async def _work(self, run: Run) -> Operation:
        try:
            try:
                await run.work()
            except (Transient, LockLost, Ended):
                raise
            except Exception as error:  # whatever it is, it would come again at once, and for ever
                known = isinstance(error, HoldfastError)
                why = str(error) if known else repr(error)
                log.error("operation %s failed: %s", run.operation.id, why, exc_info=not known)
                await run.end("failed", f"{why}; {done_so_far(run.operation)}")
        except Ended:
            return run.operation
        raise AssertionError("a run ends with Ended")

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
