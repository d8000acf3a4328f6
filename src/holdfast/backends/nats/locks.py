"""Locks: leases on a name, each under a token that only ever rises."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import orjson

from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale, state
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.model.errors import LockLost, Unavailable
from holdfast.model.names import check_stored
from holdfast.model.upkeep import Lock


@dataclass(frozen=True, slots=True)
class _Held:
    """A lock as it is stored. Without an owner it is free; its token stays, so that the next is higher."""

    name: str
    owner: str | None = None
    token: int = 0
    until: int = 0
    revision: int = 0

    def is_of(self, lock: Lock) -> bool:
        return (self.owner, self.token) == (lock.owner, lock.token)

    def message(self, owner: str | None, token: int, until: int) -> BatchMessage:
        return state(subjects.lock(self.name), orjson.dumps([owner, token, until]), self.revision)


class Locks:
    """Takes, renews and frees locks, and fences what is done under them."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        check_stored("a lock's name or owner", name, owner)
        for _ in range(TRIES):
            now, held = await self._store.clock(), await self._held(name)
            if held.owner is not None and held.until > now:
                return None
            token = max(held.token, self._store.registry.tokens) + 1
            taken = Lock(name, owner, token, from_micros(now + to_micros(ttl)))
            if await self._replaced(held, owner, taken):
                return taken
        raise Unavailable(f"the lock {name!r} is wanted by too many at once; try again")

    async def renew(self, lock: Lock, ttl: timedelta) -> Lock:
        for _ in range(TRIES):
            now, held = await self._store.clock(), await self._held(lock.name)
            if not held.is_of(lock):
                raise LockLost(lock.name, lock.token)
            renewed = Lock(lock.name, lock.owner, lock.token, from_micros(now + to_micros(ttl)))
            if await self._replaced(held, lock.owner, renewed):
                return renewed
        raise Unavailable(f"the lock {lock.name!r} changed too often to renew it; try again")

    async def release(self, lock: Lock) -> bool:
        await self._store.recognise()
        for _ in range(TRIES):
            held = await self._held(lock.name)
            if not held.is_of(lock):
                return False
            if await self._replaced(held, None, lock):
                return True
        raise Unavailable(f"the lock {lock.name!r} changed too often to free it; try again")

    async def fence(self, lock: Lock) -> BatchMessage:
        """Return a message that fails its batch once somebody else took the lock. Raises `LockLost`."""
        held = await self._held(lock.name)
        if not held.is_of(lock):
            raise LockLost(lock.name, lock.token)
        return held.message(held.owner, held.token, held.until)

    async def _held(self, name: str) -> _Held:
        found = await self._store.newest(subjects.lock(name))
        if found is None:
            return _Held(name)
        owner, token, until = orjson.loads(found.data)
        return _Held(name, owner, token, until, found.seq)

    async def _replaced(self, held: _Held, owner: str | None, lock: Lock) -> bool:
        try:
            await self._store.commit([held.message(owner, lock.token, to_micros(lock.until))])
        except Stale:
            return False
        return True
