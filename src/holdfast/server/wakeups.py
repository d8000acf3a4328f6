"""Wake-ups for long polls: one listener on each store, however many wait, for whatever.

Those who wait for the same consumer queue up. Only the first of a queue is woken, and polls now and then;
when it leaves it wakes the next one. So a thousand waiting calls cost a store what one of them does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from holdfast.bus.partitions import Partitions
from holdfast.contracts import STORE_ERRORS, Listener, raise_if_cancelled
from holdfast.server.auth.caller import Caller

log = logging.getLogger(__name__)

RECHECK = 2.0


class Waiter:
    """A call in the queue of a consumer."""

    def __init__(self, queue: list[Waiter]) -> None:
        self._queue = queue
        self.woken = asyncio.Event()
        queue.append(self)

    @property
    def first(self) -> bool:
        """Whether this one polls the store."""
        return self._queue[0] is self

    def leave(self) -> None:
        """Leave the queue. The next one polls at once: there may be more than one has taken."""
        first = self.first
        self._queue.remove(self)
        if first and self._queue:
            self._queue[0].woken.set()


class Rechecks:
    """Whether those who wait would still be let in: asked now and then for each caller, not for each wait."""

    def __init__(self, every: float = RECHECK) -> None:
        self._every = every
        self._asked: dict[Caller, asyncio.Task[None]] = {}

    async def ask(self, caller: Caller, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Raise what the check raised when it was last made for this caller."""
        if caller not in self._asked:
            self._asked[caller] = asyncio.create_task(self._check(caller, check))
        await asyncio.shield(self._asked[caller])

    async def _check(self, caller: Caller, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.get_running_loop().call_later(self._every, self._asked.pop, caller)
        await check()


class WakeUps:
    """All waiters. A wake-up may be spurious and may be missed: poll after it, and now and then."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._queues: defaultdict[str, dict[str, list[Waiter]]] = defaultdict(dict)
        self._listeners: list[Listener] = []
        self._heard: frozenset[str] = frozenset()
        self._lock = asyncio.Lock()
        self.rechecks = Rechecks()

    @asynccontextmanager
    async def on(self, channel: str, consumer: str) -> AsyncIterator[Waiter]:
        """Wait in the queue of a consumer; woken when its channel may have new work, never where no store can
        listen."""
        queue = self._queues[channel].setdefault(consumer, [])
        waiter = Waiter(queue)
        try:
            await asyncio.shield(self._listen_as_needed())
            yield waiter
        finally:
            waiter.leave()
            if not queue:
                del self._queues[channel][consumer]
            if not self._queues[channel]:
                del self._queues[channel]
            await asyncio.shield(self._listen_as_needed())

    def waiting(self, channel: str) -> frozenset[Waiter]:
        """The waiters of a channel."""
        return frozenset(waiter for queue in self._queues.get(channel, {}).values() for waiter in queue)

    def wake_all(self) -> None:
        """Wake everybody, first or not: the server stops."""
        for channel in self._queues:
            for waiter in self.waiting(channel):
                waiter.woken.set()

    async def _listen_as_needed(self) -> None:
        """Listen to every channel that somebody waits for; to nothing once nobody waits at all."""
        async with self._lock:
            wanted = frozenset(self._queues)
            if wanted <= self._heard and (wanted or not self._listeners):
                return
            before, self._listeners = self._listeners, []
            if wanted:
                await self._listen(sorted(wanted))
            whole = len(self._listeners) == len(self._partitions.all)
            self._heard = wanted if whole else frozenset()
            for listener in before:
                await listener.close()

    async def _listen(self, channels: list[str]) -> None:
        for partition in self._partitions.all:
            try:
                store = (await self._partitions.ready(partition)).backend
                failed = partial(partition.count_error, "listen")
                self._listeners.append(await store.listen(channels, self._wake, failed))
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                log.info("partition %s has no listener: %r", partition.index, error)  # the poll says why

    def _wake(self, channel: str) -> None:
        for queue in self._queues.get(channel, {}).values():
            queue[0].woken.set()
