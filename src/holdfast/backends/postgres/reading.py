"""Bulk reading: the log's extent, where to cut it, and pages of it by column."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from holdfast.backends.postgres.places import following, place, position, up_to
from holdfast.backends.postgres.session import Session
from holdfast.model.errors import DataLost
from holdfast.model.log import Cut, Extent, Lag, Page
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
            await self._check_whole(channel, after)
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

    async def _check_whole(self, channel: str, after: str | None) -> None:
        row = await self._session.row("trimmed", channel=channel)
        if row is not None and place(after) < row:
            raise DataLost(
                f"channel {channel!r} was trimmed up to {position(*row)}, and the reader asks for what "
                f"follows {after or 'the beginning'}; go on there, and take the rest from the archive"
            )

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        """How much follows a position, and since when it waits."""
        row = await self._session.row("behind", channel=channel, limit=limit, **following(after))
        return Lag(*row) if row else Lag(0, None)


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
