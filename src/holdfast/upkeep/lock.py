"""Locks: taken, renewed in the background, freed by their owner only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from datetime import timedelta

from holdfast.contracts import STORE_ERRORS, Backend, raise_if_cancelled
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Lock

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def holding(backend: Backend, name: str, owner: str, ttl: timedelta) -> AsyncIterator[Lock | None]:
    """Yield the lock while the block runs, or None where somebody else has it.

    It is renewed at a third of its time. A holder that lost it all the same learns so from the store, which
    refuses its token: work under a lock must carry it.
    """
    lock = await backend.locks.acquire(name, owner, ttl)
    if lock is None:
        yield None
        return
    renewal = asyncio.create_task(_renew(backend, lock, ttl))
    try:
        yield lock
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        try:
            await backend.locks.release(lock)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("the lock %s was not freed, it ends by itself: %r", lock.name, error)


async def _renew(backend: Backend, lock: Lock, ttl: timedelta) -> None:
    while True:
        await asyncio.sleep(ttl.total_seconds() / 3)
        try:
            await backend.locks.renew(lock, ttl)
        except LockLost:
            log.warning("the lock %s was lost", lock.name)
            return
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("the lock %s could not be renewed: %r", lock.name, error)
