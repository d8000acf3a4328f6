"""Locks: leases on names, with a token that only ever rises."""

from __future__ import annotations

from datetime import timedelta

from holdfast.backends.redis.codec import from_micros, to_micros
from holdfast.backends.redis.session import Session
from holdfast.model.upkeep import Lock


class Locks:
    """Each is a hash of ours, and a string under the lock's own name for other clients."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        answer = await self._session.run("locks/acquire", name, owner, to_micros(ttl))
        return None if answer is None else Lock(name, owner, int(answer[0]), from_micros(answer[1]))

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        until = await self._session.run("locks/renew", lock.name, lock.token, to_micros(ttl))
        return Lock(lock.name, lock.owner, lock.token, from_micros(until))

    async def release(self, lock: Lock) -> bool:
        return bool(await self._session.run("locks/release", lock.name, lock.token))
