"""Retention: what leaves the log and the dead, and what keeps new events out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.backends.redis import keys
from holdfast.backends.redis.bulk import Bulk
from holdfast.backends.redis.codec import position, to_micros
from holdfast.backends.redis.dead import MOST
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.model.decide import Ref
from holdfast.model.upkeep import Forgotten, Hold, Lock, Size, Trim

_NODES = 10_000  # of a stream's some hundred entries each: what is measured, up to a million entries exactly


class Retention:
    """The sweeper's steps, each fenced by its lock."""

    def __init__(self, session: Session, bulk: Bulk) -> None:
        self._session, self._bulk = session, bulk

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock | None,
        ignore: Sequence[str],
        groups: Sequence[str],
        ended: Sequence[Ref],
    ) -> Trim:
        """Remove the oldest events that nobody needs."""
        fence: list[Argument] = ["", ""] if lock is None else [lock.name, lock.token]
        names: list[Argument] = [len(ignore), *ignore, len(groups), *groups]
        names += [f"{ref}:{entry}" for ref, entry in ended]
        answer = await self._session.run("trim", channel, to_micros(before), limit, *fence, *names)
        removed, more, holder, spare, length, last = answer
        after = position(*spare.split()) if spare else None
        hold = Hold(holder.decode(), after) if holder else None
        if lock is None and last:  # no script counts so much: the server does nothing else meanwhile
            until = position(*last.split())
            removed = sum(cut.rows for cut in await self._bulk.cuts(channel, None, length, length, until))
        return Trim(removed, bool(more) and lock is not None, hold)

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

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        """Keys and ended jobs expire by themselves here: there is never anything to do."""
        if lock is not None:
            await self._session.run("fence", lock.name, lock.token)
        return Forgotten(0, 0, more=False)

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        """dead → purged, no more at a time than one script should move."""
        options = (channel, to_micros(before), min(limit, MOST), lock.name, lock.token)
        return {name.decode(): purged for name, purged in await self._session.run("purge_dead", *options)}
