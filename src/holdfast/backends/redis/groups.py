"""Foreign groups: other software's XREADGROUP clients on our streams. The backend itself has none."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import position
from holdfast.backends.redis.session import Session
from holdfast.model.upkeep import Group, Lock

_MILLISECOND = timedelta(milliseconds=1)
_CHANNELS = 100  # in one script: the server does nothing else meanwhile


class Groups:
    """How long a member is idle is the server's own count: the test kit's offset does not move it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def all(self, alive: timedelta) -> list[Group]:
        channels = sorted(await self._session.call("HKEYS", keys.CHANNELS))
        found: list[Group] = []
        for start in range(0, len(channels), _CHANNELS):
            some = channels[start : start + _CHANNELS]
            rows = await self._session.run("groups/all", alive // _MILLISECOND, *some)
            found += [_group(*row) for row in rows]
        return found

    async def reclaim(self, group: Group, alive: timedelta, limit: int, lock: Lock) -> int:
        options = (group.channel, group.name, alive // _MILLISECOND, limit, lock.name, lock.token)
        return int(await self._session.run("groups/reclaim", *options))

    async def remove(self, group: Group, alive: timedelta, lock: Lock | None) -> bool:
        fence = ("", "") if lock is None else (lock.name, lock.token)
        options = (group.channel, group.name, alive // _MILLISECOND, *fence)
        return bool(await self._session.run("groups/remove", *options))


def _group(channel: bytes, name: bytes, members: int, idle: int | bytes, *rest: Any) -> Group:
    pending, stale, delivered = rest
    return Group(
        channel.decode(),
        name.decode("utf-8", "replace"),
        members,
        None if idle == b"" else int(idle) * _MILLISECOND,
        pending,
        stale,
        position(*delivered.split()) if delivered else None,
    )
