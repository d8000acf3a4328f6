"""Defects of locks: freed by somebody else, and work that does not carry the token (I5, I6)."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Any, ClassVar

from holdfast.chaos.controls.control import Control
from holdfast.chaos.rig import CHANNEL, Rig
from holdfast.chaos.weakened import Weakened, maker
from holdfast.contracts import Backend
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Lock, Trim

NAME, TTL = "gbe:lock:sweeper", timedelta(minutes=5)


class Nameless(Weakened):
    """Knows that a lock is held, but not by whom: everybody acts as its holder."""

    held: ClassVar[dict[str, Lock]] = {}

    async def lock(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        taken = await self.inner.lock(name, owner, ttl)
        if taken is not None:
            self.held[name] = taken
        return taken

    async def unlock(self, lock: Lock) -> bool:
        await self.inner.unlock(self.held[lock.name])
        return False

    async def trim(self, channel: str, before: datetime, limit: int, lock: Lock, **options: Any) -> Trim:
        return await self.inner.trim(channel, before, limit, self.held[lock.name], **options)


async def _late(rig: Rig, sound: bool) -> tuple[Backend, Lock, Backend]:
    """Somebody who took the lock and was away past its end, and somebody who has it since."""
    slow, quick = (rig.recorded(name, maker(sound, Nameless)) for name in ("slow", "quick"))
    await slow.open()
    await quick.open()
    lock = await slow.lock(NAME, "slow", TTL)
    if lock is None:
        raise RuntimeError("nobody has the lock of an empty store, and yet it was not to be had")
    await slow.advance(TTL)
    await quick.lock(NAME, "quick", TTL)
    return slow, lock, quick


async def _freed(rig: Rig, sound: bool) -> set[str]:
    """It frees what it no longer has, and a third one asks."""
    slow, lock, quick = await _late(rig, sound)
    await slow.unlock(lock)
    await slow.lock(NAME, "third", TTL)
    await slow.close()
    await quick.close()
    return await rig.broken()


async def _trimmed(rig: Rig, sound: bool) -> set[str]:
    """It goes on trimming."""
    slow, lock, quick = await _late(rig, sound)
    await slow.create_channel(CHANNEL)
    with contextlib.suppress(LockLost):
        await slow.trim(CHANNEL, await slow.now(), 10, lock)
    await slow.close()
    await quick.close()
    return await rig.broken()


CONTROLS = [
    Control("unfenced-sweep", "A sweeper trims without showing its lock's token.", "I5", _trimmed),
    Control("nameless-lock", "A lock is freed without a look at who holds it.", "I6", _freed),
]
