"""Turns: long work on the event loop in short pieces, so that others are served in between."""

from __future__ import annotations

import asyncio
import time

_PIECE = 0.005
"""Seconds of work after which the others have their turn."""


class Turns:
    """Asked between two steps of some work: lets the others go ahead once a piece of it was done."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def pause(self) -> None:
        """Give way, if this task has worked for a while."""
        if time.perf_counter() - self._since > _PIECE:
            await asyncio.sleep(0)
            self._since = time.perf_counter()
