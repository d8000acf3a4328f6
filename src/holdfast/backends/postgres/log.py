"""The log: publish and read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import orjson
import psycopg

from holdfast import failpoints
from holdfast.backends.postgres import bulk
from holdfast.backends.postgres.arrays import BytesArray, TextArray
from holdfast.backends.postgres.places import following
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.reading import report_loss
from holdfast.backends.postgres.session import PATIENCE, Session, translate
from holdfast.backends.postgres.waker import Waker
from holdfast.model.batch import Batch
from holdfast.model.errors import InvalidInput, Overloaded
from holdfast.model.event import DEFAULT_SOURCE, DEFAULT_TYPE, Event, LogEntry, Receipt, receipts
from holdfast.model.position import format_position

_BULK = 200  # from here on COPY is worth its round trips


class Log:
    """Appends to channels, wakes their listeners, and reads channels back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waker = Waker(session)
        self._known: set[str] = set()

    async def publish(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int, connection: Any
    ) -> list[Receipt]:
        """Append a batch, all or none; on the caller's connection it joins the caller's transaction."""
        if not events:
            return []
        if connection is not None:
            await self._know(channel)
            parameters = _columns(channel, events, at, priority, wake=True)
            return _receipts(events, *await _on_callers(connection, parameters, self._session.url))
        receipts = await self._append(channel, events, at, priority)
        failpoints.hit("publish.after_commit")
        return receipts

    async def _know(self, channel: str) -> None:
        """Create a channel outside the caller's transaction: inside, it would lock out other publishers."""
        if channel not in self._known:
            await self._session.row("create_channel", channel=channel)
            self._known.add(channel)

    async def _append(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int
    ) -> list[Receipt]:
        if len(events) >= _BULK:
            try:
                batch = Batch.of(events)
                async with self._session.connection(_patience(batch)) as own:
                    receipts = await bulk.publish(own, channel, batch, at, priority)
            except (psycopg.errors.UniqueViolation, Overloaded):
                pass  # some of it may have been published before: take the way that tells repeats apart
            else:
                self._waker.later(channel)
                return receipts
        failpoints.hit("publish.before_commit")
        wake = self._waker.take_turn(channel)
        rows: list[tuple[Any, ...]] = []
        if len(events) == 1:
            rows = await self._session.rows("publish_one", **_single(channel, events[0], at, priority, wake))
        if not rows:
            rows = await self._session.rows("publish", **_columns(channel, events, at, priority, wake=wake))
        if not wake:
            self._waker.later(channel)
        return _receipts(events, *rows[0])

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        """A page of the log after a position, below the oldest running transaction."""
        start = following(after)
        rows = await self._session.rows("read", channel=channel, limit=limit, **start)
        if rows:
            await report_loss(self._session, channel, start, rows[0][0])
        return [LogEntry(channel, format_position(*row[:3]), Event(*row[3:])) for row in rows]

    async def close(self) -> None:
        """Send the wake-ups that are still due."""
        await self._waker.close()


async def _on_callers(connection: Any, parameters: dict[str, Any], url: str) -> tuple[Any, ...]:
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        raise InvalidInput(f"connection is a {type(connection).__name__}; pass a connection of psycopg 3")
    try:
        if isinstance(connection, psycopg.AsyncConnection):
            cursor = connection.cursor(binary=True)
            cursor.row_factory = psycopg.rows.tuple_row
            await cursor.execute(QUERIES["publish"], parameters)
            [row] = await cursor.fetchall()
        else:
            plain = connection.cursor(binary=True, row_factory=psycopg.rows.tuple_row)
            [row] = await asyncio.to_thread(lambda: plain.execute(QUERIES["publish"], parameters).fetchall())
    except psycopg.Error as error:
        raise translate(error, url) from error
    return tuple(row)


def _patience(batch: Batch) -> float:
    """A large batch takes its time: a second a megabyte is long for any server that answers at all."""
    return PATIENCE + sum(map(len, batch.data)) / 1_000_000


def _single(channel: str, event: Event, at: datetime | None, priority: int, wake: bool) -> dict[str, Any]:
    headers = orjson.dumps(dict(event.headers)).decode() if event.headers else None
    values = {"channel": channel, "at": at, "priority": priority, "wake": wake}
    return event._asdict() | values | {"headers": headers}


def _columns(
    channel: str, events: Sequence[Event], at: datetime | None, priority: int, *, wake: bool
) -> dict[str, Any]:
    return {
        "channel": channel,
        "ids": TextArray([event.id for event in events]),
        "data": BytesArray([event.data for event in events]),
        "sources": _unless_all(events, lambda e: e.source, DEFAULT_SOURCE),
        "types": _unless_all(events, lambda e: e.type, DEFAULT_TYPE),
        "keys": _unless_all(events, lambda e: e.key, None),
        "times": _times(events),
        "headers": _unless_all(
            events, lambda e: orjson.dumps(dict(e.headers)).decode() if e.headers else None, None
        ),
        "at": at,
        "priority": priority,
        "wake": wake,
    }


def _unless_all(
    events: Sequence[Event], get: Callable[[Event], str | None], default: str | None
) -> TextArray | None:
    """The column, or None where every event has the default: most batches then carry two columns."""
    column = [get(event) for event in events]
    return None if all(value == default for value in column) else TextArray(column)


def _times(events: Sequence[Event]) -> list[datetime | None] | None:
    times = [event.time for event in events]
    return times if any(times) else None


def _receipts(
    events: Sequence[Event], epoch: int, tx: int, seqs: list[int], repeats: list[dict[str, int]] | None = None
) -> list[Receipt]:
    made = receipts([event.id for event in events], format_position(epoch, tx), seqs)
    for repeat in repeats or ():
        position = format_position(repeat["epoch"], repeat["tx"], repeat["seq"])
        made[repeat["at"]] = Receipt(events[repeat["at"]].id, position, duplicate=True)
    return made
