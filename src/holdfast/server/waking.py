"""Wake-ups for those who wait in a long poll: one listener on each store, however many wait, for whatever."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from holdfast.bus.partitions import Partitions
from holdfast.contracts import STORE_ERRORS, Listener, raise_if_cancelled

log = logging.getLogger(__name__)


class Waking:
    """Everybody who waits. A wake-up may be spurious and may be missed: poll after it, and now and then."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._listeners: list[Listener] = []
        self._heard: frozenset[str] = frozenset()
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def on(self, channel: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when a channel may have new work. Where nobody can listen it never is."""
        event = asyncio.Event()
        self._waiting[channel].add(event)
        try:
            await asyncio.shield(self._fit())
            yield event
        finally:
            self._waiting[channel].discard(event)
            if not self._waiting[channel]:
                del self._waiting[channel]
            await asyncio.shield(self._fit())

    def waiting(self, channel: str) -> frozenset[asyncio.Event]:
        """Those who wait for a channel."""
        return frozenset(self._waiting.get(channel, ()))

    async def _fit(self) -> None:
        """Listen to every channel that somebody waits for; to nothing once nobody waits at all."""
        async with self._lock:
            wanted = frozenset(self._waiting)
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
        for event in self._waiting.get(channel, ()):
            event.set()
