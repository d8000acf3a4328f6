"""Folding: the counts' deltas into the summary, under one lock per store that fences whoever holds it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from holdfast.contracts import Backend
from holdfast.model.deadletters import Drift, Fold
from holdfast.model.errors import LockLost, Unavailable
from holdfast.model.upkeep import Lock
from holdfast.upkeep.holding import holding

LOCK = "dlq-summary-updater"
FRESH = timedelta(minutes=10)
MOST = 10_000
"""Deltas that may wait before they are folded sooner."""
_TTL = timedelta(seconds=30)
_TRIES = 50
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Folding:
    """Looks after the counts of one store."""

    backend: Backend
    owner: str
    fresh: timedelta = FRESH
    most: int = MOST

    async def fold(self) -> Fold:
        """Fold, unless that was done lately or somebody else is at it."""
        async with holding(self.backend, LOCK, self.owner, _TTL) as lock:
            if lock is None:
                return Fold(folded=0, skipped=True)
            try:
                return await self.backend.fold_dead(self.fresh, self.most, lock)
            except LockLost:  # whoever has it now folds
                return Fold(folded=0, skipped=True)

    async def run_once(self) -> int:
        """Fold where it is time; returns how many deltas were folded."""
        return (await self.fold()).folded

    async def forecast(self) -> int:
        """How many deltas `run_once` would fold now."""
        return (await self.backend.fold_dead(self.fresh, self.most, None)).folded

    async def recount(self, repair: bool) -> list[Drift]:
        """Count what is there and compare, once whoever folds is done."""
        async with self._patiently() as lock:
            return await self.backend.recount_dead(repair, lock)

    @asynccontextmanager
    async def _patiently(self) -> AsyncIterator[Lock]:
        for _ in range(_TRIES):
            async with holding(self.backend, LOCK, self.owner, _TTL) as lock:
                if lock is not None:
                    yield lock
                    return
            await asyncio.sleep(_PAUSE)
        raise Unavailable(f"somebody else holds the lock {LOCK!r}; try again in a minute")
