"""The log in bulk: its extent, where to cut it, pages of it, and how far behind a position is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime

from holdfast.backends.parts import read_parts
from holdfast.backends.redis import keys
from holdfast.backends.redis.charts import STEP, Chart, Point, cuts, parse_chart
from holdfast.backends.redis.codec import entry_of, published_at, to_micros
from holdfast.backends.redis.columns import Row, page
from holdfast.backends.redis.epochs import place
from holdfast.backends.redis.link import Argument
from holdfast.backends.redis.session import Session
from holdfast.model.errors import DataLost
from holdfast.model.log import Cut, Extent, Lag, Page, Part, Waiting

_WALK = 1_000
_FETCH, _FIRST, _FETCH_BYTES = 10_000, 10, 8_000_000


class Bulk:
    """Reads logs in large pieces, and never holds the server for long."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def extent(self, channel: str) -> Extent:
        """From where to where the log can be read."""
        chart = await self._chart(channel)
        return Extent(*map(chart.position, (chart.trimmed, chart.first, chart.last)))

    async def seek(self, channel: str, time: datetime) -> str | None:
        """The last event published before a time."""
        chart = await self._chart(channel)
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
        return chart.position(entry)

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        """Where to cut; from the chart alone where slices are large, by walking where they are small."""
        chart = await self._chart(channel, after, until, limit)
        exact = min(limit, every) < 2 * STEP
        points = self._walked(channel, chart, every, limit) if exact else self._charted(channel, chart, limit)
        return cuts(chart, [point async for point in points], limit, every)

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        """How many events follow, and how old the first of them is."""
        chart = await self._chart(channel, after, None, limit)
        if chart.empty:
            return Lag(0, None)
        rows = [point.rows async for point in self._charted(channel, chart, limit)]
        first = await self._rows(keys.stream(channel), chart.start, b"+", 1)
        return Lag(min(rows[-1], limit), published_at(*first[0])) if rows and first else Lag(0, None)

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        """What follows a position on each of many channels; one look at each that has nothing new."""
        found = await asyncio.gather(*(self._waiting(*each, limit) for each in after.items()))
        return dict(zip(after, found, strict=True))

    async def _waiting(self, channel: str, after: str | None, limit: int) -> Waiting:
        chart = await self._chart(channel, after, None, limit)
        ends = chart.position(chart.trimmed), chart.position(chart.last)
        if chart.empty:
            return Waiting(*ends, 0, 0, None)
        points = [point async for point in self._charted(channel, chart, limit)]
        first = await self._rows(keys.stream(channel), chart.start, b"+", 1)
        if not points or not first:
            return Waiting(*ends, 0, 0, None)
        return Waiting(*ends, min(points[-1].rows, limit), points[-1].bytes, published_at(*first[0]))

    async def read_parts(self, parts: Sequence[Part], most: int) -> list[Page]:
        """A page for each of the first parts."""
        return await read_parts(lambda part: self.pages(*part, _FETCH), parts, most)

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        """Every event of a range. The next page is on its way while one is made of this one."""
        chart = await self._chart(channel, after, until)
        count, start = min(size, _FIRST), chart.start
        if start:
            _check_kept(channel, after, chart.trimmed, start)
        if chart.empty:
            return
        coming = asyncio.create_task(self._kept_rows(channel, after, start, chart.end, count))
        try:
            while rows := await coming:
                weight = max(sum(map(len, flat)) for _, flat in rows) + 1
                count = max(1, min(size, _FETCH, 10 * count, _FETCH_BYTES // weight))
                start = rows[-1][0]
                coming = asyncio.create_task(self._kept_rows(channel, after, start, chart.end, count))
                yield page(chart.marks, rows)
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

    async def _chart(
        self, channel: str, after: str | None = None, until: str | None = None, limit: int = 0
    ) -> Chart:
        """One look. Milestones are hardly ever less than half a step apart."""
        bounds: list[Argument] = []
        for bound in (after, until):
            bounds += ("", "") if bound is None else entry_of(bound)
        answer = await self._session.run("chart", channel, *bounds, limit and limit * 2 // STEP + 2)
        return parse_chart(answer, until is not None)

    async def _charted(self, channel: str, chart: Chart, limit: int) -> AsyncIterator[Point]:
        """Points up to `limit` rows, from milestone to milestone. What has none is walked, once."""
        start, ordinal = chart.start, chart.anchor
        rows = size = 0
        for milestone in () if chart.empty else chart.ahead:
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

    async def _walked(self, channel: str, chart: Chart, every: int, limit: int) -> AsyncIterator[Point]:
        """Points at each multiple of `every`, and exactly at `limit`."""
        if not chart.empty:
            async for point in self._walk(channel, Point(chart.start, 0, 0), chart.end, every, limit, None):
                yield point

    async def _walk(
        self, channel: str, start: Point, end: bytes, every: int, limit: int, ordinal: int | None
    ) -> AsyncIterator[Point]:
        """Go from entry to entry, and note milestones where the ordinal at the start is known."""
        entry, rows, size = start
        told = rows
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
                told = point.rows
        if rows > told:
            yield Point(entry, rows, size)

    async def _note(self, channel: str, start: Point, ordinal: int, found: list[Point]) -> None:
        values: list[Argument] = []
        for entry, rows, size in found:
            since = rows - start.rows
            values += (entry, ordinal + since, (size - start.bytes) // since)
        if values:
            await self._session.run("note", channel, *values)

    async def _rows(self, stream: str, after: bytes, end: bytes, count: int) -> list[Row]:
        return list(await self._session.call("XRANGE", stream, b"(" + after, end, "COUNT", count))


def _check_kept(channel: str, after: str | None, trimmed: bytes, start: bytes) -> None:
    if trimmed and place(start) < place(trimmed):
        raise DataLost(
            f"channel {channel} was trimmed up to entry {trimmed.decode()}, and events after "
            f"{after or 'its beginning'} went with it; restore them from the archive, or go on at the extent"
        )


def _weight(flat: list[bytes]) -> int:
    names = flat[::2]
    if b"data" in names:
        return len(flat[2 * names.index(b"data") + 1])
    return sum(map(len, flat[1::2]))
