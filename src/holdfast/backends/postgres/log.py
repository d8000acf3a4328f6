"""The log: publish, read, and read in bulk."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

import orjson
import psycopg

from holdfast import failpoints
from holdfast.backends.postgres import bulk_publish, callers
from holdfast.backends.postgres.acknowledged import Acknowledged
from holdfast.backends.postgres.arrays import BytesArray, TextArray
from holdfast.backends.postgres.horizon import horizon, horizons
from holdfast.backends.postgres.positions import (
    AFTER_ALL,
    BEFORE_ALL,
    Place,
    following,
    numbers,
    position,
    up_to,
)
from holdfast.backends.postgres.session import PATIENCE, Session
from holdfast.backends.postgres.wakeups import Waker
from holdfast.model.errors import DataLost, Overloaded
from holdfast.model.event import (
    DEFAULT_SOURCE,
    DEFAULT_TYPE,
    Event,
    EventColumns,
    LogEntry,
    Receipt,
    receipts,
)
from holdfast.model.log import PARTS, Cut, Extent, Lag, Page, Part, Waiting, joined
from holdfast.model.position import format_position

log = logging.getLogger(__name__)

_BULK = 200  # from here on COPY is worth its round trips
# A page holds at most so much data, as far as the size of the one before it tells.
_PAGE_BYTES = 16_000_000
_FIRST_PAGE = 500
_NO_HEADERS: dict[str, str] = {}


class Log:
    """Appends to channels and wakes their listeners; reads end with the horizon."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._waker = Waker(session)
        self._acknowledged = Acknowledged(session)
        self._known: set[str] = set()

    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        if not events:
            return []
        if connection is not None:
            await self._know(channel)
            parameters = _columns(channel, events, at, priority, wake=True)
            return _receipts(events, *await callers.row(connection, "publish", parameters, self._session.url))
        receipts = await self._append(channel, events, at, priority)
        self._acknowledged.add(channel, receipts)
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
                batch = EventColumns.of(events)
                async with self._session.connection(_patience(batch)) as own:
                    receipts = await bulk_publish.publish(own, channel, batch, at, priority)
            except (psycopg.errors.UniqueViolation, Overloaded):
                pass  # some of it may have been published before: take the way that tells repeats apart
            else:
                self._waker.later(channel)
                return receipts
        failpoints.hit("publish.before_commit")
        wake = self._waker.take_turn(channel)
        receipts = await self._append_one(channel, events[0], at, priority, wake) if len(events) == 1 else []
        if not receipts:
            rows = await self._session.rows("publish", **_columns(channel, events, at, priority, wake=wake))
            receipts = _receipts(events, *rows[0])
        if not wake:
            self._waker.later(channel)
        return receipts

    async def _append_one(
        self, channel: str, event: Event, at: datetime | None, priority: int, wake: bool
    ) -> list[Receipt]:
        """The quick way for a fresh event in an unbounded channel; else it does and returns nothing."""
        data, name, source, kind, key, time, headers = event
        rows = await self._session.rows(
            "publish_one",
            channel=channel,
            id=name,
            data=data,
            source=source,
            type=kind,
            key=key,
            time=time,
            headers=orjson.dumps(dict(headers)).decode() if headers else None,
            at=at,
            priority=priority,
            wake=wake,
        )
        return [Receipt(name, format_position(*row)) for row in rows]

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        start, end = following(after), await self._end(channel)
        rows = await self._session.rows("read", channel=channel, limit=limit, **start, **end)
        if rows:
            await report_loss(self._session, channel, start, rows[0][0])
        return [LogEntry(channel, format_position(*row[:2]), Event(*row[2:])) for row in rows]

    async def extent(self, channel: str) -> Extent:
        row = await self._session.row("extent", channel=channel, **await self._end(channel))
        if row is None:
            return Extent(None, None, None)
        return Extent(position(*row[:2]), position(*row[2:4]), position(*row[4:]))

    async def seek(self, channel: str, time: datetime) -> str | None:
        row = await self._session.row("seek", channel=channel, time=time, **await self._end(channel))
        return position(*row) if row else None

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        """Where to cut the log into slices, from its primary key alone."""
        end = await self._end(channel, until)
        rows = await self._session.rows(
            "cuts", channel=channel, limit=limit, every=every, **following(after), **end
        )
        return [Cut(format_position(*row[:2]), *row[2:]) for row in rows]

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        # Once is enough: whatever can be read now can be read later.
        end, limit = await self._end(channel, until), min(size, _FIRST_PAGE)
        while True:
            start = following(after)
            rows = await self._session.rows("page", channel=channel, limit=limit, **start, **end)
            # Asked afterwards: what was trimmed while the page was read shows here.
            _check_whole(channel, after, await self._session.row("trimmed", channel=channel))
            if not rows:
                return
            await report_loss(self._session, channel, start, rows[0][0])
            page = _page(rows)
            yield page
            if len(rows) < limit:
                return
            after = page.positions[-1]
            mean = sum(map(len, page.data)) // len(rows) + 1
            limit = max(1, min(size, _PAGE_BYTES // mean))

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        end = await self._end(channel)
        row = await self._session.row("behind", channel=channel, limit=limit, **following(after), **end)
        return Lag(*row) if row else Lag(0, None)

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        ends = await horizons(self._session, after)
        there = _between((numbers(after[channel]), end) for channel, end in ends.items())
        rows = await self._session.rows("waiting", channels=list(ends), limit=limit, **there)
        found = {row[0]: Waiting(position(*row[1:3]), position(*row[3:5]), *row[5:]) for row in rows}
        return {channel: found.get(channel, Waiting(None, None, 0, 0, None)) for channel in after}

    async def read_parts(self, parts: Sequence[Part], most: int = PARTS) -> list[Page]:
        channels = [part.channel for part in parts]
        ends = await horizons(self._session, set(channels))
        wanted = _between(
            (numbers(part.after), min(numbers(part.until), ends.get(part.channel, BEFORE_ALL)))
            for part in parts
        )
        rows = await self._session.rows("parts", channels=channels, **wanted)
        # Asked afterwards: what was trimmed while they were read shows here.
        trimmed = {row[0]: row[1:] for row in await self._session.rows("all_trimmed", channels=channels)}
        for part in parts:
            _check_whole(part.channel, part.after, trimmed.get(part.channel))
        pages = {number: [row[1:] for row in its] for number, its in groupby(rows, key=lambda row: row[0])}
        for number, its in pages.items():
            part = parts[number - 1]
            await report_loss(self._session, part.channel, following(part.after), its[0][0])
        return [
            _page(pages[number]) if number in pages else joined(()) for number in range(1, len(parts) + 1)
        ]

    async def _end(self, channel: str, until: str | None = None) -> dict[str, int]:
        """Parameters for a statement that ends with the horizon of a channel, or before it with `until`."""
        end = AFTER_ALL if until is None else numbers(until)
        return up_to(min(end, await horizon(self._session, channel)))

    async def close(self) -> None:
        """Send the wake-ups and the report that are still due."""
        await self._waker.close()
        await self._acknowledged.close()


def _patience(batch: EventColumns) -> float:
    """A large batch takes its time: a second a megabyte is long for any server that answers at all."""
    return PATIENCE + sum(map(len, batch.data)) / 1_000_000


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
    events: Sequence[Event], epoch: int, seqs: list[int], repeats: list[dict[str, int]] | None = None
) -> list[Receipt]:
    made = receipts([event.id for event in events], f"{epoch:04x}", seqs)
    for repeat in repeats or ():
        position = format_position(repeat["epoch"], repeat["seq"])
        made[repeat["at"]] = Receipt(events[repeat["at"]].id, position, duplicate=True)
    return made


def _between(ranges: Iterable[tuple[Place, Place]]) -> dict[str, list[int]]:
    """Where ranges start and end, as parameters: one for each of the numbers."""
    found = [(*start, *end) for start, end in ranges]
    names = ("epochs", "seqs", "until_epochs", "until_seqs")
    return {name: [each[number] for each in found] for number, name in enumerate(names)}


def _check_whole(channel: str, after: str | None, trimmed: tuple[int, ...] | None) -> None:
    if trimmed is not None and numbers(after) < trimmed:
        raise DataLost(
            f"channel {channel!r} was trimmed up to {position(*trimmed)}, and the reader asks for what "
            f"follows {after or 'the beginning'}; go on there, and take the rest from the archive"
        )


async def report_loss(session: Session, channel: str, start: Mapping[str, int], epoch: int) -> None:
    """Tell of a reader whose position lies in what a failover has lost, as it goes on in a later epoch."""
    if 0 < start["epoch"] < epoch and await session.row("lost", channel=channel, **start) == (True,):
        log.warning(
            "a reader of channel %r stood at %s, an event that this server never had: the one before it had "
            "acknowledged it, and lost it in a failover. It goes on with epoch %s",
            *(channel, format_position(*start.values()), epoch),
        )


def _page(rows: list[tuple[Any, ...]]) -> Page:
    columns = [list(column) for column in zip(*rows, strict=True)]
    positions = [f"{epoch:04x}-{seq:016x}" for epoch, seq in zip(*columns[:2], strict=True)]
    ids, sources, types, keys, times, headers, data = columns[2:]
    headers = [each or _NO_HEADERS for each in headers]
    return Page(positions, ids, sources, types, keys, times, headers, data)
