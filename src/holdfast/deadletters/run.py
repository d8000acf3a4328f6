"""A run: one operation worked through, chunk by chunk, each step durable before the next one.

Before a chunk is touched, the record says which items it has and what became of the one before. So whoever
goes on after a crash knows which items may or may not have been done, looks at those, and counts each once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from holdfast import failpoints
from holdfast.deadletters import canary
from holdfast.deadletters.acts import GONE, Acts, Fate
from holdfast.deadletters.chunks import Chunk, next_chunk
from holdfast.deadletters.ids import parse_item
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation, Stand, State
from holdfast.deadletters.operations import Operations, done_so_far
from holdfast.deadletters.pace import Pace
from holdfast.model.errors import LockLost, NotFound

CHUNK = 1_000
_PATCHES = 100
"""A chunk of patches: each is a step of its own."""
_ROWS = 1_000
_LOOK = 1.0
_PROBLEMS, _LONGEST = 10, 500

Tell = Callable[[Operation], None]


class Ended(Exception):
    """The operation has ended, and so does the run."""


class Run:
    """Works one operation through, under its lock."""

    def __init__(
        self, operations: Operations, operation: Operation, pace: Pace, chunk: int, tell: Tell | None
    ) -> None:
        self.operation = operation
        self._operations, self._letters = operations, operations.letters
        self._acts, self._pace, self._tell = Acts(operations.letters), pace, tell
        self._chunk = min(chunk, _PATCHES) if operation.kind == "patch" else chunk

    async def work(self) -> None:
        """Do all that is left of it; raises `Ended` at its end, whichever that is."""
        if self.operation.kind == "remove_consumer":
            await self._remove_consumer()
        else:
            await self._settle()
            await self._go_on()
        await self.end("done", done_so_far(self.operation))

    async def end(self, state: State, outcome: str) -> None:
        """Write down how it ended."""
        ended = replace(self.operation, state=state, outcome=outcome, ended_at=await self._now())
        if state == "done":  # nobody goes on with it, and it is kept for ever
            ended = replace(ended, stand=Stand(ended.stand.token, ended.stand.asked))
        await (await self._operations.audit()).ended(ended)
        failpoints.hit("operation.before_end")
        await self._save(ended)
        raise Ended

    async def _settle(self) -> None:
        """Finish the chunk that somebody else has left."""
        pending = [parse_item(each) for each in self.operation.stand.pending]
        if pending:
            self.operation = counted(self.operation, await self._acts.settle(self.operation, pending))

    async def _go_on(self) -> None:
        while True:
            await self._judge()
            await self._check_stop()
            chunk = await next_chunk(self._acts, self.operation, self._limit())
            if chunk is None:
                return
            await self._pace.let(len(chunk.items))
            await self._check_stop()
            await self._save(intending(self.operation, chunk))
            failpoints.hit("operation.after_intent")
            fates = await self._acts.act(self.operation, chunk.items)
            failpoints.hit("operation.after_act")
            self.operation = counted(self.operation, fates)

    def _limit(self) -> int:
        limit, stand = self._pace.most(self._chunk), self.operation.stand
        wanted = self.operation.request.options.canary
        return limit if wanted is None or stand.cleared else min(limit, wanted.size - len(stand.trying))

    async def _judge(self) -> None:
        """Where all of the canary are on their way, wait until they have ended, and go on or stop."""
        wanted, stand = self.operation.request.options.canary, self.operation.stand
        if wanted is None or stand.cleared or len(stand.trying) < wanted.size:
            return
        tried = stand.tried or await self._now()
        await self._save(replace(self.operation, stand=replace(stand, tried=tried)))
        while not (verdict := await canary.look(self._letters, self.operation, await self._now())).over:
            await self._pace.wait(_LOOK)
            await self._check_stop()
            await self._save(self.operation)  # whoever cancelled it is noticed here
        if not verdict.passed:
            await self.end("stopped", f"{verdict.why}; {done_so_far(self.operation)}")
        self.operation = replace(self.operation, stand=replace(self.operation.stand, cleared=True))

    async def _remove_consumer(self) -> None:
        where = (self.operation.request.filter or Filter()).where
        for store in await self._letters.stores():
            over = False
            while not over:
                await self._check_stop()
                try:
                    step = await store.remove_consumer(where.channel or "", where.consumer or "", _ROWS)
                except NotFound:
                    break
                failpoints.hit("operation.after_act")
                over, progress = step.done, self.operation.progress
                progress = progress.plus(step.jobs + step.dead + step.history, 0)
                await self._save(replace(self.operation, progress=progress))

    async def _check_stop(self) -> None:
        if self._pace.stop.is_set():
            outcome = f"cancelled by {self.operation.actor}; {done_so_far(self.operation)}"
            await self.end("cancelled", outcome)

    async def _save(self, operation: Operation) -> None:
        """Make it durable, unless somebody else runs it by now or has cancelled it."""
        saved = await self._operations.save(operation)
        if saved is None:
            stored = await self._operations.show(operation.id)
            if stored.stand.token != operation.stand.token or stored.state != "cancelled":
                raise LockLost(f"operation:{operation.id}", operation.stand.token)
            await self._leave(stored)
            raise Ended
        self.operation = saved
        if self._tell is not None:
            self._tell(saved)

    async def _leave(self, stored: Operation) -> None:
        """It was cancelled: write down what was done so far, and nothing of what was only meant to be."""
        mine = self.operation
        by = stored.outcome.partition(";")[0]
        left = replace(
            stored,
            progress=mine.progress,
            problems=mine.problems,
            stand=mine.stand,
            outcome=f"{by}; {done_so_far(mine)}",
        )
        self.operation = await self._operations.save(left) or stored

    async def _now(self) -> datetime:
        return await (await self._operations.first()).now()


def intending(operation: Operation, chunk: Chunk) -> Operation:
    """What the record says before a chunk is touched."""
    before = counted(operation, chunk.left_alone)
    pending = tuple(map(str, chunk.items))
    return replace(
        before, stand=replace(before.stand, source=chunk.source, after=chunk.after, pending=pending)
    )


def counted(operation: Operation, fates: Sequence[Fate]) -> Operation:
    """The operation after some items have met their fate."""
    stand = operation.stand
    done = tuple(str(fate.item) for fate in fates if not fate.problem)
    said = tuple(_told(fate) for fate in fates if fate.problem not in ("", GONE))
    trying = operation.request.options.canary is not None and not stand.cleared
    return replace(
        operation,
        progress=operation.progress.plus(len(done), len(fates) - len(done)),
        problems=(operation.problems + said)[:_PROBLEMS],
        stand=replace(stand, pending=(), trying=stand.trying + done if trying else stand.trying),
    )


def _told(fate: Fate) -> str:
    """A problem as a record can hold it, whatever an error's text was."""
    return f"{fate.item} {fate.problem}"[:_LONGEST].encode("utf-8", "replace").decode()
