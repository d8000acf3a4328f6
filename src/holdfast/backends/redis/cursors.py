"""Stream consumers and their cursors."""

from __future__ import annotations

from holdfast.backends.redis.codec import entry_of, from_micros, position
from holdfast.backends.redis.log import Log
from holdfast.backends.redis.session import Session
from holdfast.contracts import Start
from holdfast.model.errors import NotFound
from holdfast.model.upkeep import Cursor


class Cursors:
    """Stored in one hash for each channel."""

    def __init__(self, session: Session, log: Log) -> None:
        self._session, self._log = session, log

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        begin: str | bytes = "earliest"
        if isinstance(start, str):
            begin = start
        elif (before := await self._log.seek(channel, start)) is not None:
            begin = entry_of(before)[1]
        stored = await self._session.run("cursors/attach", channel, consumer, begin)
        return _cursor(channel, consumer, stored)

    async def all(self, channel: str | None = None) -> list[Cursor]:
        rows = await self._session.run("cursors/all", channel or "")
        found = [_cursor(where.decode(), name.decode(), cursor) for where, name, cursor in rows]
        return sorted(found, key=lambda each: (each.channel, each.name))

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        old = b"" if expected is None else b"%d %b" % entry_of(expected)
        new = b"%d %b" % entry_of(position)
        forward = expected is None or position > expected
        try:
            moved = await self._session.run("cursors/move", channel, consumer, old, new if forward else b"")
        except NotFound:
            raise NotFound(
                f"channel {channel!r} has no stream consumer {consumer!r}; create it with attach"
            ) from None
        return bool(moved)

    async def detach(self, channel: str, consumer: str) -> bool:
        return bool(await self._session.run("cursors/detach", channel, consumer))


def _cursor(channel: str, consumer: str, stored: bytes) -> Cursor:
    moved, *at = stored.split()
    return Cursor(channel, consumer, position(*at) if at else None, from_micros(moved))
