"""The committer: what many tasks commit at the same time becomes one batch.

A batch costs the server a store of its own, some milliseconds on a disk, whatever its size. So while two are
under way the next ones wait and travel together. A refused group is tried again one by one: each caller is
answered for its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.backends.nats.batch import MOST, MOST_BYTES, Batches, Incomplete, Message, Stale
from holdfast.model.errors import Overloaded, TooLarge

_UNDER_WAY = 2


class _Waiting(NamedTuple):
    messages: Sequence[Message]
    answer: asyncio.Future[int]

    @property
    def size(self) -> int:
        return sum(len(message.data) for message in self.messages)

    def fences(self) -> set[str]:
        return {message.subject for message in self.messages if message.expect is not None}


class Committer:
    """Commits, a few batches at a time."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._waiting: list[_Waiting] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, messages: Sequence[Message]) -> int:
        """All or none; answers the sequence of the last message. It goes on when the caller gives up."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(messages, answer))
        self._start()
        return await answer

    def _start(self) -> None:
        while self._waiting and len(self._tasks) < _UNDER_WAY:
            task = asyncio.create_task(self._run(self._group()))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._start()

    def _group(self) -> list[_Waiting]:
        """The first ones that fit, without two that fence the same subject: one of them would be stale."""
        group, rest, messages, size = list[_Waiting](), list[_Waiting](), 0, 0
        fenced: set[str] = set()
        for each in self._waiting:
            messages, size = messages + len(each.messages), size + each.size
            fits = messages <= MOST and size <= MOST_BYTES and not fenced & each.fences()
            if rest or (group and not fits):
                rest.append(each)
                continue
            group.append(each)
            fenced |= each.fences()
        self._waiting = rest
        return group

    async def _run(self, group: list[_Waiting]) -> None:
        try:
            seq = await self._batches.commit([message for each in group for message in each.messages])
        except (Stale, Incomplete, Overloaded, TooLarge) as error:
            if len(group) > 1:
                for each in group:
                    await self._run([each])
            else:
                _fail(group, error)
        except Exception as error:
            _fail(group, error)
        else:
            for each in reversed(group):
                if not each.answer.done():
                    each.answer.set_result(seq)
                seq -= len(each.messages)


def _fail(group: list[_Waiting], error: Exception) -> None:
    for each in group:
        if not each.answer.done():
            each.answer.set_exception(error)
