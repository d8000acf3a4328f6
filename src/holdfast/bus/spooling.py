"""Publishing through a spool: acknowledged while no store answers, sent in order when one is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast import failpoints
from holdfast.bus.publisher import Publisher, prepared
from holdfast.bus.spool import Spool, Spooled, runs
from holdfast.model.errors import HoldfastError, Overloaded, Unavailable
from holdfast.model.event import Event, Receipt

log = logging.getLogger(__name__)

_BATCH = 500
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 15.0


class SpoolingPublisher:
    """A publisher that keeps in a spool what no store takes now.

    While the spool holds anything, everything goes through it, so that the order of a process's events stays.
    """

    def __init__(self, publisher: Publisher, spool: Spool) -> None:
        self._publisher, self._spool = publisher, spool
        self._turn = asyncio.Lock()
        self._filled = asyncio.Event()
        self._draining: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the spool's folder; what an earlier process left there is sent first."""
        await asyncio.to_thread(self._spool.open)
        self._draining = asyncio.create_task(self._drain())
        if len(self._spool):
            log.info("the spool holds %s events of an earlier process", len(self._spool))
            self._filled.set()

    async def close(self) -> None:
        """Stop sending. What is left stays in the folder for the next process."""
        if self._draining is not None:
            self._draining.cancel()
            await asyncio.gather(self._draining, return_exceptions=True)
            await asyncio.to_thread(self._spool.close)

    async def publish(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int, connection: Any
    ) -> list[Receipt]:
        """Like `Publisher.publish`. A receipt without a position: durable here, not yet in the channel."""
        named = prepared(channel, events, at, priority)
        if connection is not None or not len(self._spool):
            try:
                return await self._publisher.publish(channel, named, at, priority, connection)
            except Unavailable as error:
                if connection is not None:
                    raise
                log.warning("no store takes events, they go to the spool: %s", error)
        entries = [Spooled(channel, _timed(event), at, priority) for event in named]
        async with self._turn:
            await asyncio.to_thread(self._spool.append, entries)
        failpoints.hit("spool.after_append")
        self._filled.set()
        return [Receipt(event.id, "") for event in named]

    async def _drain(self) -> None:
        """Send the oldest events, again and again, as long as there are any."""
        pause = _FIRST_PAUSE
        while True:
            await self._filled.wait()
            try:
                await self._send_some()
                pause = _FIRST_PAUSE
            except Exception as error:  # whatever it is, what is in the spool must go out in the end
                log.warning("the spool's %s events cannot be sent yet: %s", len(self._spool), error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _send_some(self) -> None:
        entries = await asyncio.to_thread(self._spool.peek, _BATCH)
        for run in runs(entries):
            await self._send(run)
            failpoints.hit("spool.after_publish")
            async with self._turn:
                await asyncio.to_thread(self._spool.advance, len(run))
            failpoints.hit("spool.after_advance")
        if not len(self._spool):
            self._filled.clear()

    async def _send(self, run: Sequence[Spooled]) -> None:
        """Publish neighbours at once; where one of them is refused for good, each by itself."""
        first = run[0]
        try:
            await self._publisher.publish(
                first.channel, [entry.event for entry in run], first.at, first.priority, None
            )
        except (Unavailable, Overloaded):
            raise
        except HoldfastError as error:
            if len(run) > 1:
                for entry in run:
                    await self._send([entry])
                return
            log.error("event %s of the spool is refused: %s", first.event.id, error)
            await asyncio.to_thread(self._spool.set_aside, first, error)


def _timed(event: Event) -> Event:
    """An event keeps the time at which it was published, not that at which a store was back."""
    return event if event.time is not None else Event._make((*event[:5], datetime.now(UTC), event[6]))
