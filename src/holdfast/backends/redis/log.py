"""The log: publish and read."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from holdfast import failpoints
from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import Values, decode, encode, position, to_micros
from holdfast.backends.redis.epochs import Mark, epoch_of, parse_mark
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.model.errors import IdConflict, InvalidInput, Overloaded, TooLarge
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.position import parse_position

_PART, _PART_BYTES = 200, 4_000_000
_MOST_BYTES = 256_000_000
_LAST = (1 << 64) - 1


class Log:
    """Appends to channels and reads them back."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def publish(
        self, channel: str, events: Sequence[Event], at: datetime | None, priority: int, connection: Any
    ) -> list[Receipt]:
        """Append a batch, all or none. The server does nothing else meanwhile: some 20 µs an event."""
        if connection is not None:
            raise InvalidInput("Redis has no transaction that a publish could join; leave out the connection")
        if not events:
            return []
        rows = [encode(event) for event in events]
        parts = list(_parts(rows))
        due = "" if at is None else to_micros(at)
        failpoints.hit("publish.before_commit")
        if len(parts) == 1:
            options = (channel, due, priority, len(rows), "")
            answers = [await self._session.run("publish", *options, *chain.from_iterable(rows))]
        else:
            answers = await self._in_parts(channel, due, priority, parts)
        failpoints.hit("publish.after_commit")
        _raise_refused(channel, answers[0])
        return [
            _receipt(event.id, int(epoch), place)
            for (_, epoch, *places), part in zip(answers, _split(events, parts), strict=True)
            for event, place in zip(part, places, strict=True)
        ]

    async def _in_parts(
        self, channel: str, due: int | str, priority: int, parts: Sequence[Sequence[Values]]
    ) -> list[list[bytes]]:
        """A large batch: a check of the whole, then its parts, in one transaction of the server.

        One script with everything would be slower: what Lua holds at once slows each payload down.
        """
        rows = [row for part in parts for row in part]
        if (size := sum(len(row[7]) for row in rows)) > _MOST_BYTES:
            raise TooLarge(f"a batch of {size} bytes; the limit on Redis is {_MOST_BYTES}")
        verdict = keys.VERDICT + uuid.uuid4().hex
        options: list[Argument] = ["publish", channel, due, priority, len(rows), verdict]
        known: list[Argument] = [value for row in rows for value in (row[0], row[1], row[6])]
        check, *answers = await self._session.run_together(
            ["check", verdict, channel, *known],
            *[[*options, *chain.from_iterable(part)] for part in parts],
        )
        return [check] if check[0] != b"ok" else answers

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        """A page of the log after a position."""
        epoch, *place = (0, 0, 0) if after is None else parse_position(after, 2)
        start = (place[0], place[1])
        marks, rows = await self._page(channel, start, limit)
        if rows and not marks:  # a foreign stream: from now on its positions keep their epoch
            await self._session.run("create_channel", channel)
            marks, rows = await self._page(channel, start, limit)
        if marks and epoch > marks[-1][0]:
            return []
        # What the store has lost of an earlier epoch must not hide what it has written since.
        lower = min([mark for number, mark in marks if number > epoch], default=start)
        if after is not None and lower < start:
            marks, rows = await self._page(channel, lower, limit)
        return [
            LogEntry(channel, position(epoch_of(marks, row), row), decode(row, fields))
            for row, fields in rows
        ]

    async def _page(
        self, channel: str, after: tuple[int, int], limit: int
    ) -> tuple[list[Mark], list[tuple[bytes, list[bytes]]]]:
        start = f"({after[0]}-{after[1]}" if any(after) else "-"
        if after == (_LAST, _LAST):  # nothing can be after it, and the server refuses to look
            return [], []
        # Not in a transaction: a full server would refuse it, and what is never read is never trimmed.
        marks, rows = await self._session.together(
            ("LRANGE", keys.epochs(channel), 0, -1),
            ("XRANGE", keys.stream(channel), start, "+", "COUNT", limit),
        )
        return [parse_mark(mark) for mark in marks], rows


def _parts(rows: Sequence[Values]) -> Iterator[Sequence[Values]]:
    start = size = 0
    for place, row in enumerate(rows):
        size += len(row[7])
        if place - start >= _PART or (size > _PART_BYTES and place > start):
            yield rows[start:place]
            start, size = place, len(row[7])
    yield rows[start:]


def _split(events: Sequence[Event], parts: Sequence[Sequence[Values]]) -> Iterator[Sequence[Event]]:
    start = 0
    for part in parts:
        yield events[start : start + len(part)]
        start += len(part)


def _raise_refused(channel: str, answer: Sequence[bytes]) -> None:
    match answer:
        case [b"conflict", *names]:
            raise IdConflict(channel, list(dict.fromkeys(name.decode() for name in names)))
        case [b"full"]:
            raise Overloaded(
                f"channel {channel} is full by its max_bytes policy; publish again once it was trimmed"
            )
        case [b"full", consumer, live, most]:
            raise Overloaded(
                f"consumer {consumer.decode()} of channel {channel} holds {int(live)} live jobs; "
                f"its max_depth is {int(most)}; publish again once it has caught up"
            )


def _receipt(name: str, epoch: int, place: bytes) -> Receipt:
    if place[0] != 61:  # '=' marks what was there before
        return Receipt(name, position(epoch, place))
    first, _, entry = place[1:].partition(b" ")
    return Receipt(name, position(first, entry), duplicate=True)
