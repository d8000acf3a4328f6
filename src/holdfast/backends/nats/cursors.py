"""Cursors of stream consumers: how far each one's sink is durable."""

from __future__ import annotations

from datetime import datetime

import orjson

from holdfast.backends.nats.log import Log
from holdfast.backends.nats.state.store import TRIES, NatsStore, TrimMark
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import Stale, anew, state
from holdfast.backends.nats.wire.codec import from_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.contracts import Start
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.position import parse_position
from holdfast.model.upkeep import Cursor

_GONE_SECONDS = 1


class Cursors:
    """Creates, moves and removes stream consumers."""

    def __init__(self, store: NatsStore, log: Log) -> None:
        self._store, self._log = store, log

    async def attach(self, channel: str, consumer: str, start: Start = "earliest") -> Cursor:
        await self._store.look()
        await self._store.ensure_channel(channel)
        for _ in range(TRIES):
            known = await self._store.trim_mark(channel)
            cursor, revision = await self._find(channel, consumer)
            if cursor is not None:
                return cursor
            cursor = Cursor(
                channel, consumer, await self._start(known, start), from_micros(await self._store.clock())
            )
            if await self._written(cursor, revision, known):
                return cursor
        raise Unavailable(f"stream consumer {consumer!r} of {channel!r} changed too often; try again")

    async def _start(self, known: TrimMark, start: Start) -> str | None:
        match start:
            case "earliest":
                found = None
            case "latest":
                found = (await self._log.extent(known.channel)).last
            case datetime():
                found = await self._log.seek(known.channel, start)
        return found or (self._store.registry.position(known.seq) if known.seq else None)

    async def all(self, channel: str | None = None) -> list[Cursor]:
        await self._store.look()
        asked = "HF.C.>" if channel is None else subjects.stream_cursor(channel, "*")
        found = [_decoded(message) for message in await self._store.connection.last([asked]) if message.data]
        return sorted(found, key=lambda each: (each.channel, each.name))

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        for each in (position, expected):
            if each is not None:
                parse_position(each, 1)
        now = await self._store.clock()
        for _ in range(TRIES):
            cursor, revision = await self._find(channel, consumer)
            if cursor is None:
                raise NotFound(
                    f"channel {channel!r} has no stream consumer {consumer!r}; create it with attach"
                )
            if cursor.position != expected or (expected is not None and position <= expected):
                return False
            if await self._written(Cursor(channel, consumer, position, from_micros(now)), revision):
                return True
        raise Unavailable(f"the cursor of {consumer!r} on {channel!r} changed too often; try again")

    async def detach(self, channel: str, consumer: str) -> bool:
        await self._store.look()
        for _ in range(TRIES):
            cursor, revision = await self._find(channel, consumer)
            if cursor is None:
                return False
            try:
                subject = subjects.stream_cursor(channel, consumer)
                await self._store.commit([state(subject, b"", revision, _GONE_SECONDS)])
                return True
            except Stale:
                continue
        raise Unavailable(f"the cursor of {consumer!r} on {channel!r} changed too often; try again")

    async def _find(self, channel: str, consumer: str) -> tuple[Cursor | None, int]:
        found = await self._store.newest(subjects.stream_cursor(channel, consumer))
        if found is None:
            return None, 0
        return _decoded(found) if found.data else None, found.seq

    async def _written(self, cursor: Cursor, revision: int, known: TrimMark | None = None) -> bool:
        body = orjson.dumps([cursor.channel, cursor.name, cursor.position, cursor.moved_at])
        subject = subjects.stream_cursor(cursor.channel, cursor.name)
        message = state(subject, body, revision) if known is None else anew(subject, body, revision)
        try:
            await self._store.commit([message, *([known.again()] if known else [])])
        except Stale:
            return False
        return True


def _decoded(message: StoredMessage) -> Cursor:
    channel, name, position, moved = orjson.loads(message.data)
    return Cursor(channel, name, position, datetime.fromisoformat(moved))
