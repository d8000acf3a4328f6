"""A task that is cancelled just as its answer comes in ends there: nothing swallows the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import connection
from holdfast.backends.nats.wire.connection import Replies
from holdfast.model.event import Event
from kit import CHANNEL

CALLS: dict[str, Callable[[NatsBackend], Awaitable[object]]] = {
    "a request": lambda backend: backend._store.info(),
    "a batched read": lambda backend: backend._store.connection.last(["HF.>"]),
    "a batch": lambda backend: backend.log.publish(CHANNEL, [Event(1, "e-1"), Event(2, "e-2")]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_cancellation_with_the_answer_is_not_swallowed(
    backend: NatsBackend, monkeypatch: pytest.MonkeyPatch, call: Callable[[NatsBackend], Awaitable[object]]
) -> None:
    await backend.log.publish(CHANNEL, [Event(0, "e-0")])
    cancelled = 0

    class Interrupted(Replies):
        """Cancels the task that waits for it in the moment in which it is complete."""

        def __init__(self, client: Any, one: bool) -> None:
            super().__init__(client, one)
            self._asker = asyncio.current_task()

        def __call__(self, headers: bytes, data: bytes) -> None:
            nonlocal cancelled
            super().__call__(headers, data)
            if self.done.done() and self._asker is task:
                cancelled += task.cancel()

    async def asked() -> None:
        await call(backend)

    task = asyncio.create_task(asked())
    monkeypatch.setattr(connection, "Replies", Interrupted)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled
