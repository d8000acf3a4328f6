"""Wake-ups: NOTIFY after a publish, coalesced, and LISTEN on the connections that are there anyway.

NOTIFY locks the server's queue until its commit is on disk. A publish therefore carries it only if none was
sent just before; the others share one that follows on its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.backends.notices import deliver
from holdfast.backends.postgres.session import Session
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.errors import Unavailable

log = logging.getLogger(__name__)

_EVERY = 0.005
_PAUSE = 1.0
_LOOK = 1.0


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


class PostgresListener:
    """Calls `wake` when a channel of interest was published to, and tells of jobs of it that were cancelled.
    Listens on the session's own connections."""

    def __init__(
        self,
        session: Session,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None],
        cancelled: Callable[[str, str, str], None],
    ) -> None:
        self._failed, self._cancelled = failed, cancelled
        self._session, self._channels, self._wake = session, frozenset(channels), wake
        self._notices: set[str] = set()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """Stop listening."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._session.stop_listening(self._hear)

    def _hear(self, text: str | None) -> None:
        if text is None:  # some may have been missed: of new work, and of any job that was cancelled
            self._notices |= self._channels | {f"{channel}//" for channel in self._channels}
        elif text.partition("/")[0] in self._channels:
            self._notices.add(text)
        if self._notices:
            self._news.set()

    async def _listen(self) -> None:
        while True:
            try:
                self._hear(None)
                while await self._session.listening(self._hear):
                    await self._deliver_notices()
                log.info("a pooler passes no notifications on: new work is found by polls alone")
                return
            except STORE_ERRORS as error:  # whatever it is: polls go on meanwhile, and it listens again
                raise_if_cancelled(error)
                log.warning("the listener failed and begins again: %r", error)
                self._failed(error)
                await asyncio.sleep(_PAUSE)

    async def _deliver_notices(self) -> None:
        """Tell what was heard. Returns after a while, to look whether a connection still listens."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK):
                await self._news.wait()
        self._news.clear()
        notices, self._notices = self._notices, set()
        for text in notices:
            deliver(text, self._channels, self._wake, self._cancelled)
