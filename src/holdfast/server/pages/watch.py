"""The watch: looks at the system every other second while somebody looks at a page."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator

from prometheus_client.core import Metric

from holdfast.bus.partitions import Partitions
from holdfast.server.pages.figures import Figures, take
from holdfast.server.pages.history import History

log = logging.getLogger(__name__)

EVERY, IDLE = 2.0, 10.0


class Watch:
    """A part of the supervisor's. Viewers are told of every look."""

    name = "watch"

    def __init__(self, partitions: Partitions, every: float = EVERY, idle: float = IDLE) -> None:
        self._partitions, self._every, self._idle = partitions, every, idle
        self.history = History()
        self._looked = asyncio.Event()
        self._stopped = False
        self._viewers = 0
        self._wanted = asyncio.Event()

    async def run(self) -> None:
        """Look until cancelled: often while somebody watches, else now and then."""
        while True:
            await self.look()
            self._wanted.clear()
            pause = self._every if self._viewers else self._idle
            try:
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def look(self) -> Figures:
        """Look once, now."""
        figures = await take(self._partitions, self.history.latest)
        self.history.add(figures)
        self._tell()
        return figures

    def stop(self) -> None:
        """End all views: nobody looks any more."""
        self._stopped = True
        self._tell()

    def _tell(self) -> None:
        told, self._looked = self._looked, asyncio.Event()
        told.set()

    async def views(self) -> AsyncGenerator[Figures, None]:
        """Every look from now on until it is stopped, and the last one at once."""
        self._viewers += 1
        self._wanted.set()
        try:
            if self.history.latest is not None:
                yield self.history.latest
            while not self._stopped:
                await self._looked.wait()
                if self.history.latest is not None:
                    yield self.history.latest
        finally:
            self._viewers -= 1

    def status(self) -> str:
        """How many watch."""
        return f"{self._viewers} watching" if self._viewers else "nobody is watching"

    def metrics(self) -> Iterator[Metric]:
        """Nothing of its own."""
        yield from ()
