"""Locks: leases on names, with fencing tokens."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.backends.postgres.session import Session
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Lock


class Locks:
    """Takes, renews and frees locks."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        row = await self._session.row("lock", lock=name, owner=owner, ttl=ttl)
        return Lock(name, owner, *row) if row else None

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        row = await self._session.row("renew", ttl=ttl, **_held(lock))
        if row is None:
            raise LockLost(lock.name, lock.token)
        return replace(lock, until=row[0])

    async def release(self, lock: Lock) -> bool:
        return await self._session.row("unlock", **_held(lock)) is not None


def fencing(lock: Lock) -> dict[str, Any]:
    """Parameters for a statement that a holder from the past must not carry out."""
    return {"lock": lock.name, "token": lock.token}


def _held(lock: Lock) -> dict[str, Any]:
    return fencing(lock) | {"owner": lock.owner}
