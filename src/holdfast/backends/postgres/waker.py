"""The waker: NOTIFY, coalesced to at most one in a few milliseconds per channel.

NOTIFY locks the server's queue until its commit is on disk. A publish therefore carries it only if none was
sent just before; the others share one that follows on its own.
"""

from __future__ import annotations

import asyncio
import time

from holdfast.backends.postgres.session import Session
from holdfast.model.errors import Unavailable

_EVERY = 0.005


class Waker:
    """Decides which publishes notify by themselves, and notifies for the rest."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._sent: dict[str, float] = {}
        self._late: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def take_turn(self, channel: str) -> bool:
        """Whether the next publish to a channel should notify; if not, call `later` after it."""
        now = time.monotonic()
        if now - self._sent.get(channel, 0.0) < _EVERY:
            return False
        self._sent[channel] = now
        return True

    def later(self, channel: str) -> None:
        """Something was published without a notification."""
        self._late.add(channel)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._notify())

    async def _notify(self) -> None:
        while self._late:
            channels, self._late = sorted(self._late), set()
            try:
                await self._session.run("notify", channels=channels)
            except Unavailable:
                return  # the events are durable; polling finds them
            await asyncio.sleep(_EVERY)

    async def close(self) -> None:
        """Send what is still to be said."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
