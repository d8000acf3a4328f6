"""Retention: what leaves the log and the dead, and what keeps new events out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import position, to_micros
from holdfast.backends.redis.dead import MOST
from holdfast.backends.redis.session import Session
from holdfast.model.upkeep import Forgotten, Hold, Lock, Size, Trim

_NODES = 10_000  # of a stream's some hundred entries each: what is measured, up to a million entries exactly


class Retention:
    """The sweeper's steps, each fenced by its lock."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock,
        *,
        ignore: Sequence[str] = (),
        groups: Sequence[str] = (),
    ) -> Trim:
        """Remove the oldest events that nobody needs."""
        options = (channel, to_micros(before), limit, lock.name, lock.token)
        removed, more, holder, spare = await self._session.run(
            "trim", *options, len(ignore), *ignore, *groups
        )
        after = position(*spare.split()) if spare else None
        return Trim(removed, bool(more), Hold(holder.decode(), after) if holder else None)

    async def size(self, channel: str) -> Size:
        """How long the stream is, and how much memory it takes."""
        stream = keys.stream(channel)
        events, used = await self._session.together(
            ("XLEN", stream), ("MEMORY", "USAGE", stream, "SAMPLES", _NODES)
        )
        return Size(events, used or 0)

    async def set_full(self, channel: str, full: bool) -> None:
        """Refuse publishes, or take them again. A plain XADD of another client can not be refused."""
        await self._session.run("set_full", channel, int(full))

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock) -> Forgotten:
        """Keys and ended jobs expire by themselves here: there is never anything to do."""
        await self._session.run("fence", lock.name, lock.token)
        return Forgotten(0, 0, more=False)

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        """dead → purged, no more at a time than one script should move."""
        options = (channel, to_micros(before), min(limit, MOST), lock.name, lock.token)
        return {name.decode(): purged for name, purged in await self._session.run("purge_dead", *options)}
