"""Pace: no more than so many per second, and waiting that can be interrupted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

_STEP = 0.5


@dataclass(frozen=True, slots=True)
class Clock:
    """How a run measures and spends time; a test passes its own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


@dataclass(slots=True)
class Pace:
    """Lets `rate` items through in each second; None: all of them."""

    rate: float | None
    clock: Clock
    stop: asyncio.Event
    _next: float = 0.0

    def most(self, chunk: int) -> int:
        """How many to take at once, so that a second's worth is spread over that second."""
        return chunk if self.rate is None else max(1, min(chunk, int(self.rate)))

    async def let(self, count: int) -> None:
        """Wait until so many may go, or until told to stop."""
        if self.rate is None:
            return
        await self.wait(self._next - self.clock.now())
        self._next = max(self._next, self.clock.now()) + count / self.rate

    async def wait(self, seconds: float) -> None:
        """Wait that long, or until told to stop."""
        end = self.clock.now() + seconds
        while not self.stop.is_set() and (left := end - self.clock.now()) > 0:
            await self.clock.sleep(min(left, _STEP))
