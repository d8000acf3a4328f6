"""The log: publish, read, read in bulk, where to cut it, and how far behind a position is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any

from holdfast import failpoints
from holdfast.backends.parts import read_parts
from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import (
    EntryId,
    Mark,
    Row,
    Values,
    decode,
    decode_page,
    encode,
    entry_of,
    epoch_of,
    parse_id,
    parse_mark,
    position,
    published_at,
    to_micros,
)
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.milestones import STEP, LogOverview, Point, cuts, parse_overview
from holdfast.backends.redis.session import Session
from holdfast.model.errors import DataLost, IdConflict, InvalidInput, Overloaded, TooLarge
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.log import PARTS, Cut, Extent, Lag, Page, Part, Waiting
from holdfast.model.position import parse_position

_PART, _PART_BYTES = 200, 4_000_000
_MOST_BYTES = 256_000_000
_LAST = (1 << 64) - 1
_WALK = 1_000
_FETCH, _FIRST, _FETCH_BYTES = 10_000, 10, 8_000_000


class Log:
    """One stream for each channel. What is read in bulk never holds the server for long."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        """The server does nothing else meanwhile: some 20 µs an event."""
        if connection is not None:
            raise InvalidInput("Redis has no transaction that a publish could join; leave out the connection")
        if not events:
            return []
        rows = [encode(event) for event in events]
        parts = list(_parts(rows))
        due = "" if at is None else to_micros(at)
        failpoints.hit("publish.before_commit")
        if len(parts) == 1:
            options = (channel, due, priority, "")
            answers = [await self._session.run("log/publish", *options, *chain.from_iterable(rows))]
        else:
            answers = await self._publish_parts(channel, due, priority, parts)
        failpoints.hit("publish.after_commit")
        _raise_refused(channel, answers[0])
        appended = [(int(epoch), entry) for _, epoch, *entries in answers for entry in entries]
        return [
            _receipt(event.id, epoch, entry) for event, (epoch, entry) in zip(events, appended, strict=True)
        ]

    async def _publish_parts(
        self, channel: str, due: int | str, priority: int, parts: Sequence[Sequence[Values]]
    ) -> list[list[bytes]]:
        """A large batch: a check of the whole, then its parts, in one transaction of the server.

        One script with everything would be slower: what Lua holds at once slows each payload down.
        """
        rows = [row for part in parts for row in part]
        if (size := sum(len(row[7]) for row in rows)) > _MOST_BYTES:
            raise TooLarge(f"a batch of {size} bytes; the limit on Redis is {_MOST_BYTES}")
        verdict = keys.VERDICT + uuid.uuid4().hex
        options: list[Argument] = ["log/publish", channel, due, priority, verdict]
        known: list[Argument] = [value for row in rows for value in (row[0], row[1], row[6])]
        check, *answers = await self._session.publish_together(
            ["log/check", verdict, channel, *known],
            *[[*options, *chain.from_iterable(part)] for part in parts],
        )
        return [check] if check[0] != b"ok" else answers

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        epoch, milliseconds, seq = (0, 0, 0) if after is None else parse_position(after, 2)
        start = (milliseconds, seq)
        marks, rows = await self._page(channel, start, limit)
        if rows and not marks:  # a foreign stream: from now on its positions keep their epoch
            await self._session.run("channels/create", channel)
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

    async def _page(self, channel: str, after: EntryId, limit: int) -> tuple[list[Mark], list[Row]]:
        start = f"({after[0]}-{after[1]}" if any(after) else "-"
        if after == (_LAST, _LAST):  # nothing can be after it, and the server refuses to look
            return [], []
        # Not in a transaction: a full server would refuse it, and what is never read is never trimmed.
        marks, rows = await self._session.together(
            ("LRANGE", keys.epochs(channel), 0, -1),
            ("XRANGE", keys.stream(channel), start, "+", "COUNT", limit),
        )
        return [parse_mark(mark) for mark in marks], rows

    async def extent(self, channel: str) -> Extent:
        log = await self._overview(channel)
        return Extent(*map(log.position, (log.trimmed, log.first, log.last)))

    async def seek(self, channel: str, time: datetime) -> str | None:
        log = await self._overview(channel)
        return log.position(await self._last_before(channel, time))

    async def _last_before(self, channel: str, time: datetime) -> bytes:
        """The last entry published before a time, empty where there is none."""
        stream = keys.stream(channel)
        # An id is its time of publishing within a millisecond or two, or later.
        below = max(0, to_micros(time) // 1000 - 2)
        found = await self._session.call("XREVRANGE", stream, f"{below}-0", "-", "COUNT", 1)
        entry: bytes = found[0][0] if found else b""
        while rows := await self._rows(stream, entry or b"0-0", b"+", STEP):
            older = [row for row, flat in rows if published_at(row, flat) < time]
            entry = older[-1] if older else entry
            if len(older) < len(rows):
                break
        return entry

    async def place(self, channel: str, time: datetime) -> tuple[bytes, int]:
        """Return the last entry published before a time, and how many follow it, as far as is known."""
        entry = await self._last_before(channel, time) or b"0-0"
        log = await self._overview(channel)
        after = log.position(entry) if entry != b"0-0" else None
        return entry, (await self._waiting(channel, after, _LAST)).rows

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        """From the milestones alone where slices are large, by walking where they are small."""
        log = await self._overview(channel, after, until, limit)
        if log.empty:
            return []
        if min(limit, every) < 2 * STEP:
            points = self._walk(channel, Point(log.start, 0, 0), log.end, every, limit, None)
        else:
            points = self._points(channel, log, limit)
        return list(cuts(log, [point async for point in points], limit, every))

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        found = await self._waiting(channel, after, limit)
        return Lag(found.rows, found.oldest)

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        """A channel that has nothing new costs one request."""
        found = await asyncio.gather(*(self._waiting(*each, limit) for each in after.items()))
        return dict(zip(after, found, strict=True))

    async def _waiting(self, channel: str, after: str | None, limit: int) -> Waiting:
        log = await self._overview(channel, after, None, limit)
        ends = log.position(log.trimmed), log.position(log.last)
        if log.empty:
            return Waiting(*ends, 0, 0, None)
        points = [point async for point in self._points(channel, log, limit)]
        first = await self._rows(keys.stream(channel), log.start, b"+", 1)
        if not points or not first:
            return Waiting(*ends, 0, 0, None)
        return Waiting(*ends, min(points[-1].rows, limit), points[-1].bytes, published_at(*first[0]))

    async def read_parts(self, parts: Sequence[Part], most: int = PARTS) -> list[Page]:
        return await read_parts(lambda part: self.pages(*part, _FETCH), parts, most)

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        """The next page is on its way while one is made of this one."""
        log = await self._overview(channel, after, until)
        count, start = min(size, _FIRST), log.start
        if start:
            _check_kept(channel, after, log.trimmed, start)
        if log.empty:
            return
        coming = asyncio.create_task(self._kept_rows(channel, after, start, log.end, count))
        try:
            while rows := await coming:
                weight = max(sum(map(len, flat)) for _, flat in rows) + 1
                count = max(1, min(size, _FETCH, 10 * count, _FETCH_BYTES // weight))
                start = rows[-1][0]
                coming = asyncio.create_task(self._kept_rows(channel, after, start, log.end, count))
                yield decode_page(log.marks, rows)
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _kept_rows(
        self, channel: str, after: str | None, start: bytes, end: bytes, count: int
    ) -> list[Row]:
        """A page, and then a look at whether something before it was trimmed.

        Not in a transaction: a full server would refuse it, and what is never read is never trimmed.
        """
        if start == end:
            return []
        rows, trimmed = await self._session.together(
            ("XRANGE", keys.stream(channel), b"(" + start, end, "COUNT", count),
            ("HGET", keys.log(channel), "trimmed"),
        )
        _check_kept(channel, after, trimmed or b"", start)
        return list(rows)

    async def _overview(
        self, channel: str, after: str | None = None, until: str | None = None, limit: int = 0
    ) -> LogOverview:
        """One request. Milestones are hardly ever less than half a step apart."""
        bounds: list[Argument] = []
        for bound in (after, until):
            bounds += ("", "") if bound is None else entry_of(bound)
        answer = await self._session.run("log/overview", channel, *bounds, limit and limit * 2 // STEP + 2)
        return parse_overview(answer, until is not None)

    async def _points(self, channel: str, log: LogOverview, limit: int) -> AsyncIterator[Point]:
        """Yield points up to `limit` rows, from milestone to milestone. What has none is walked, once."""
        start, ordinal = log.start, log.anchor
        rows = size = 0
        for milestone in log.ahead:
            gap = milestone.ordinal - ordinal if milestone.ordinal is not None and ordinal is not None else 0
            if 0 < gap < 2 * STEP:
                rows, size = rows + gap, size + gap * milestone.bytes
                yield Point(milestone.entry, rows, size)
            else:
                before = Point(start, rows, size)
                async for point in self._walk(channel, before, milestone.entry, STEP, limit, ordinal):
                    yield point
                    rows, size = point.rows, point.bytes
            if rows >= limit:
                return
            start, ordinal = milestone.entry, milestone.ordinal

    async def _walk(
        self, channel: str, start: Point, end: bytes, every: int, limit: int, ordinal: int | None
    ) -> AsyncIterator[Point]:
        """Go from entry to entry; yield points at each multiple of `every`, at `limit` and at the end. Note
        them as milestones where the ordinal at the start is known."""
        entry, rows, size = start
        yielded = rows
        while rows < limit and entry != end:
            chunk = await self._rows(keys.stream(channel), entry, end, min(_WALK, limit - rows))
            if not chunk:  # the end itself is not there any more
                break
            found = []
            for entry, flat in chunk:
                rows, size = rows + 1, size + _weight(flat)
                if (rows - start.rows) % every == 0 or rows == limit or entry == end:
                    found.append(Point(entry, rows, size))
            if ordinal is not None:
                await self._note(channel, start, ordinal, found)
            for point in found:
                yield point
                yielded = point.rows
        if rows > yielded:
            yield Point(entry, rows, size)

    async def _note(self, channel: str, start: Point, ordinal: int, found: list[Point]) -> None:
        values: list[Argument] = []
        for entry, rows, size in found:
            since = rows - start.rows
            values += (entry, ordinal + since, (size - start.bytes) // since)
        if values:
            await self._session.run("log/note", channel, *values)

    async def _rows(self, stream: str, after: bytes, end: bytes, count: int) -> list[Row]:
        return list(await self._session.call("XRANGE", stream, b"(" + after, end, "COUNT", count))


def _parts(rows: Sequence[Values]) -> Iterator[Sequence[Values]]:
    start = size = 0
    for index, row in enumerate(rows):
        size += len(row[7])
        if index - start >= _PART or (size > _PART_BYTES and index > start):
            yield rows[start:index]
            start, size = index, len(row[7])
    yield rows[start:]


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


def _receipt(name: str, epoch: int, entry: bytes) -> Receipt:
    if entry[0] != 61:  # '=' marks what was there before
        return Receipt(name, position(epoch, entry))
    first, _, entry = entry[1:].partition(b" ")
    return Receipt(name, position(first, entry), duplicate=True)


def _check_kept(channel: str, after: str | None, trimmed: bytes, start: bytes) -> None:
    if trimmed and parse_id(start) < parse_id(trimmed):
        raise DataLost(
            f"channel {channel} was trimmed up to entry {trimmed.decode()}, and events after "
            f"{after or 'its beginning'} went with it; restore them from the archive, or go on at the extent"
        )


def _weight(flat: list[bytes]) -> int:
    names = flat[::2]
    if b"data" in names:
        return len(flat[2 * names.index(b"data") + 1])
    return sum(map(len, flat[1::2]))
