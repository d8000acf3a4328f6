"""Trimming in the words of its tests: a holder of the sweeper's lock with the step under test."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.contracts import Backend
from holdfast.model.event import Receipt
from holdfast.model.upkeep import Lock, Trim
from kit import CHANNEL, read_all

HOUR = timedelta(hours=1)
SWEEPER = "gbe:lock:sweeper"


class Sweep:
    """Trims one channel, step by step."""

    def __init__(self, backend: Backend, lock: Lock) -> None:
        self.backend, self.lock = backend, lock

    async def __call__(
        self, before: datetime | None = None, *, limit: int = 1000, ignore: Sequence[str] = ()
    ) -> Trim:
        """One step; without a time everything that is there is old enough."""
        if before is None:
            await self.backend.advance(timedelta(milliseconds=1))
            before = await self.backend.now()
        return await self.backend.retention.trim(CHANNEL, before, limit, self.lock, ignore=ignore)


async def locked(backend: Backend, owner: str = "tester") -> Lock:
    """The sweeper's lock, which must be free."""
    taken = await backend.locks.acquire(SWEEPER, owner, HOUR)
    assert taken is not None
    return taken


async def kept(backend: Backend) -> list[str]:
    """The ids in the log."""
    return [entry.event.id for entry in await read_all(backend)]


async def page_ids(backend: Backend, after: str | None, until: str) -> list[str]:
    """The ids in a range, read in bulk."""
    return [name async for page in backend.log.pages(CHANNEL, after, until, 2) for name in page.ids]


def positions(receipts: Sequence[Receipt]) -> list[str]:
    """Where they stand."""
    return [receipt.position for receipt in receipts]
