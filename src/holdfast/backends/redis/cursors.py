"""Stream consumers and their cursors."""

from __future__ import annotations

from datetime import datetime

from holdfast.backends.redis.bulk import Bulk
from holdfast.backends.redis.codec import entry_of, from_micros, position
from holdfast.backends.redis.session import Session
from holdfast.contracts import Start
from holdfast.model.errors import NotFound
from holdfast.model.upkeep import Cursor


class Cursors:
    """Where each stream consumer's sink is durable up to."""

    def __init__(self, session: Session, bulk: Bulk) -> None:
        self._session, self._bulk = session, bulk

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        """Create a stream consumer, or answer the one that is there."""
        begin: str | bytes = start if isinstance(start, str) else await self._place(channel, start)
        return _cursor(channel, consumer, await self._session.run("attach", channel, consumer, begin))

    async def cursors(self, channel: str | None = None) -> list[Cursor]:
        """All stream consumers of a channel, or of all."""
        rows = await self._session.run("cursors", channel or "")
        found = [_cursor(where.decode(), name.decode(), cursor) for where, name, cursor in rows]
        return sorted(found, key=lambda each: (each.channel, each.name))

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        """Move a cursor forward, if it still stands where the caller believes it to."""
        old = b"" if expected is None else b"%d %b" % entry_of(expected)
        new = b"%d %b" % entry_of(position)
        forward = expected is None or position > expected
        try:
            return bool(await self._session.run("move", channel, consumer, old, new if forward else b""))
        except NotFound:
            raise NotFound(
                f"channel {channel!r} has no stream consumer {consumer!r}; create it with attach"
            ) from None

    async def detach(self, channel: str, consumer: str) -> bool:
        """Remove a stream consumer."""
        return bool(await self._session.run("detach", channel, consumer))

    async def _place(self, channel: str, start: datetime) -> str | bytes:
        before = await self._bulk.seek(channel, start)
        return "earliest" if before is None else entry_of(before)[1]


def _cursor(channel: str, consumer: str, stored: bytes) -> Cursor:
    moved, *at = stored.split()
    return Cursor(channel, consumer, position(*at) if at else None, from_micros(moved))
