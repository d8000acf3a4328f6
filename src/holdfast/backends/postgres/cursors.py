"""Stream consumers: cursors that move by compare and swap."""

from __future__ import annotations

from typing import Any

from holdfast.backends.postgres.horizon import horizon
from holdfast.backends.postgres.positions import following, numbers, position, up_to
from holdfast.backends.postgres.session import Session
from holdfast.contracts import Start
from holdfast.model.errors import NotFound
from holdfast.model.upkeep import Cursor

_START = {"earliest": "-infinity", "latest": "infinity"}


class Cursors:
    """Creates, lists, moves and removes stream consumers."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        since = _START[start] if isinstance(start, str) else start
        while True:
            end = up_to(await horizon(self._session, channel))
            await self._session.row("attach", channel=channel, consumer=consumer, start=since, **end)
            # Gone already: it was there, or had just been made, and somebody else detached it.
            if row := await self._session.row("cursors", channel=channel, consumer=consumer):
                return _cursor(row)

    async def all(self, channel: str | None = None) -> list[Cursor]:
        rows = await self._session.rows("cursors", channel=channel, consumer=None)
        return [_cursor(row) for row in rows]

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        epoch, seq = numbers(expected)
        moved = await self._session.row(
            "move",
            channel=channel,
            consumer=consumer,
            from_epoch=epoch,
            from_seq=seq,
            **following(position),
        )
        if moved is None and not await self._session.row("cursors", channel=channel, consumer=consumer):
            raise NotFound(f"channel {channel!r} has no stream consumer {consumer!r}; create it with attach")
        return moved is not None

    async def detach(self, channel: str, consumer: str) -> bool:
        return await self._session.row("detach", channel=channel, consumer=consumer) is not None


def _cursor(row: tuple[Any, ...]) -> Cursor:
    channel, name, epoch, seq, moved_at = row
    return Cursor(channel, name, position(epoch, seq), moved_at)
