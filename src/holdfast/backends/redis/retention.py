"""Retention: what leaves the log and the dead, and what keeps new events out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from holdfast.backends.redis import keys as names
from holdfast.backends.redis.codec import position, to_micros
from holdfast.backends.redis.deadletters import MOST
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.log import Log
from holdfast.backends.redis.session import Session
from holdfast.model.decide import Ref
from holdfast.model.upkeep import Forgotten, Hold, Lock, Size, Trim

_NODES = 10_000  # of a stream's some hundred entries each: what is measured, up to a million entries exactly


class Retention:
    """The sweeper's steps. Each script checks its lock first."""

    def __init__(self, session: Session, log: Log) -> None:
        self._session, self._log = session, log

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock | None,
        *,
        ignore: Sequence[str] = (),
        groups: Sequence[str] = (),
        ended: Sequence[Ref] = (),
    ) -> Trim:
        fence: list[Argument] = ["", ""] if lock is None else [lock.name, lock.token]
        options: list[Argument] = [len(ignore), *ignore, len(groups), *groups]
        options += [f"{ref}:{entry}" for ref, entry in ended]
        answer = await self._session.run(
            "retention/trim", channel, to_micros(before), limit, *fence, *options
        )
        removed, more, holder, spare, length, last = answer
        after = position(*spare.split()) if spare else None
        hold = Hold(holder.decode(), after) if holder else None
        if lock is None and last:  # no script counts so much: the server does nothing else meanwhile
            until = position(*last.split())
            removed = sum(cut.rows for cut in await self._log.cuts(channel, None, length, length, until))
        return Trim(removed, bool(more) and lock is not None, hold)

    async def size(self, channel: str) -> Size:
        stream = names.stream(channel)
        events, used = await self._session.together(
            ("XLEN", stream), ("MEMORY", "USAGE", stream, "SAMPLES", _NODES)
        )
        return Size(events, used or 0)

    async def set_full(self, channel: str, full: bool) -> None:
        """A plain XADD of another client can not be refused."""
        await self._session.run("retention/set_full", channel, int(full))

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        """Keys and ended jobs expire by themselves here: there is never anything to do."""
        if lock is not None:
            await self._session.run("locks/check", lock.name, lock.token)
        return Forgotten(0, 0, more=False)

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        options = (channel, to_micros(before), min(limit, MOST), lock.name, lock.token)
        rows = await self._session.run("retention/purge_dead", *options)
        return {name.decode(): purged for name, purged in rows}
