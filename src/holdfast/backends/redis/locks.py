"""Locks: leases on names, with a token that only ever rises."""

from __future__ import annotations

from datetime import timedelta

from holdfast.backends.redis.codec import from_micros, to_micros
from holdfast.backends.redis.session import Session
from holdfast.model.upkeep import Lock


class Locks:
    """Taken, renewed and freed by their holder alone."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def lock(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        """Take a lock that is free or past its deadline."""
        answer = await self._session.run("lock", name, owner, to_micros(ttl))
        return None if answer is None else Lock(name, owner, int(answer[0]), from_micros(answer[1]))

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        """Move the deadline, or `LockLost`."""
        until = await self._session.run("renew", lock.name, lock.token, to_micros(ttl))
        return Lock(lock.name, lock.owner, lock.token, from_micros(until))

    async def unlock(self, lock: Lock) -> bool:
        """Free the lock if it is still this holder's."""
        return bool(await self._session.run("unlock", lock.name, lock.token))
