"""The journal: the tail of a channel, newest first, each entry with its time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from holdfast.contracts import Backend
from holdfast.model.event import Event

_MOST = 100_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One event, and when it was published."""

    at: datetime | None
    event: Event


@dataclass(frozen=True, slots=True)
class Journal:
    """Some entries, and where the older ones end."""

    entries: list[Entry]
    older: str | None


async def tail(store: Backend, channel: str, until: str | None, size: int) -> Journal:
    """The last `size` to twice as many events up to a position, or to the end of the log."""
    ends: list[str | None] = [None]
    while cuts := await store.cuts(channel, ends[-1], _MOST, size, until):
        ends += [cut.position for cut in cuts]
    entries: list[Entry] = []
    slices = list(pairwise(ends))[-2:]
    for after, last in slices:
        entries += await _entries(store, channel, after, last or "", 2 * size)
    return Journal(entries[::-1], slices[0][0] if slices else None)


async def _entries(store: Backend, channel: str, after: str | None, last: str, most: int) -> list[Entry]:
    found = [each for each in await store.read(channel, after, most) if each.position <= last]
    places = [after, *(each.position for each in found)]
    lags = await asyncio.gather(*(store.behind(channel, place, 1) for place in places[:-1]))
    return [Entry(lag.oldest, each.event) for lag, each in zip(lags, found, strict=True)]
