"""Bulk reading: the log's extent, where to cut it, and pages of it by column."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from holdfast.backends.postgres.places import following, place, position, up_to
from holdfast.backends.postgres.session import Session
from holdfast.model.errors import DataLost
from holdfast.model.log import Cut, Extent, Lag, Page, Part, Waiting, joined
from holdfast.model.position import format_position

log = logging.getLogger(__name__)

# A page holds at most so much data, as far as the size of the one before it tells.
_PAGE_BYTES = 16_000_000
_FIRST_PAGE = 500
_NO_HEADERS: dict[str, str] = {}


class Reader:
    """Reads channels in bulk, never past what may still commit below."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def extent(self, channel: str) -> Extent:
        """From where to where the log can be read."""
        row = await self._session.row("extent", channel=channel)
        if row is None:
            return Extent(None, None, None)
        return Extent(position(*row[:3]), position(*row[3:6]), position(*row[6:]))

    async def seek(self, channel: str, time: datetime) -> str | None:
        """The last event published before a time."""
        row = await self._session.row("seek", channel=channel, time=time)
        return position(*row) if row else None

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None
    ) -> list[Cut]:
        """Where to cut the log into slices, from its primary key alone."""
        rows = await self._session.rows(
            "cuts", channel=channel, limit=limit, every=every, **following(after), **up_to(until)
        )
        return [Cut(format_position(*row[:3]), *row[3:]) for row in rows]

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        """The log by column, in pages of at most `size` events."""
        end, limit = up_to(until), min(size, _FIRST_PAGE)
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
        """How much follows a position, and since when it waits."""
        row = await self._session.row("behind", channel=channel, limit=limit, **following(after))
        return Lag(*row) if row else Lag(0, None)

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        """What follows a position on each of many channels."""
        starts = _columns("epochs", "txs", "seqs", places=map(place, after.values()))
        rows = await self._session.rows("waiting", channels=list(after), limit=limit, **starts)
        found = {row[0]: Waiting(position(*row[1:4]), position(*row[4:7]), *row[7:]) for row in rows}
        return {channel: found.get(channel, Waiting(None, None, 0, 0, None)) for channel in after}

    async def read_parts(self, parts: Sequence[Part]) -> list[Page]:
        """A page for each part."""
        channels = [part.channel for part in parts]
        starts = [place(part.after) for part in parts]
        ends = _columns("until_epochs", "until_txs", "until_seqs", places=(place(p.until) for p in parts))
        begins = _columns("epochs", "txs", "seqs", places=starts)
        rows = await self._session.rows("parts", channels=channels, **begins, **ends)
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


def _columns(*names: str, places: Iterable[tuple[int, ...]]) -> dict[str, list[int]]:
    """Places as parameters, one for each of their numbers."""
    found = list(places)
    return {name: [each[number] for each in found] for number, name in enumerate(names)}


def _check_whole(channel: str, after: str | None, trimmed: tuple[int, ...] | None) -> None:
    if trimmed is not None and place(after) < trimmed:
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
    prefixes = {each: format_position(*each) for each in set(zip(*columns[:2], strict=True))}
    positions = [f"{prefixes[epoch, tx]}-{seq:016x}" for epoch, tx, seq in zip(*columns[:3], strict=True)]
    ids, sources, types, keys, times, headers, data = columns[3:]
    headers = [each or _NO_HEADERS for each in headers]
    return Page(positions, ids, sources, types, keys, times, headers, data)
