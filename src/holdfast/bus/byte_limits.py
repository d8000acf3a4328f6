"""Byte limits: reads and polls that are bounded by bytes, not only by number.

An event has up to a megabyte. A store is asked for a few at a time, which bounds what is fetched in excess.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.event import Event, LogEntry
from holdfast.model.job import Job

log = logging.getLogger(__name__)

AT_ONCE = 16
"""Events, or jobs, that one call of a store brings."""
MOST_AT_ONCE = 64
"""Jobs that one claim leases where those before were small. The next ones may have a megabyte each: what is
leased, and then given back, is in memory for that moment."""
_EACH = 200
"""About what an event takes besides its data and headers, in bytes."""


def weight(event: Event) -> int:
    """Return about how many bytes an event takes in a response."""
    return _EACH + len(event.data) + sum(len(name) + len(value) for name, value in event.headers.items())


async def entries(
    store: Backend, channel: str, after: str | None, limit: int | None = None
) -> AsyncIterator[LogEntry]:
    """Yield the log after a position, up to `limit` entries, a few at a time."""
    while limit is None or limit > 0:
        asked = AT_ONCE if limit is None else min(AT_ONCE, limit)
        page = await store.log.read(channel, after, asked)
        for entry in page:
            after = entry.position
            yield entry
        if len(page) < asked:
            return
        limit = None if limit is None else limit - asked


async def read_within(
    store: Backend, channel: str, after: str | None, limit: int, size: int
) -> list[LogEntry]:
    """Return the log after a position: up to `limit` entries, up to the one that reaches `size` bytes."""
    found: list[LogEntry] = []
    async for entry in entries(store, channel, after, limit):
        found.append(entry)
        size -= weight(entry.event)
        if size <= 0:
            break
    return found


async def claim_within(
    claim: Callable[[int], Awaitable[list[Job]]], limit: int, size: int
) -> tuple[list[Job], list[Job]]:
    """Return jobs by `claim`, which is told how many: up to `limit`, up to the one that reaches `size` bytes;
    and those leased beyond it, which have to be released. Raises only where nothing was leased.

    The claims double while jobs of twice the size of the largest so far would fit."""
    kept: list[Job] = []
    step, largest = AT_ONCE, 0
    while len(kept) < limit and size > 0:
        asked = min(step, limit - len(kept))
        try:
            found = await claim(asked)
        except HoldfastError as error:
            if not kept:
                raise
            log.warning("a poll ends with the %d jobs that it has: %s", len(kept), error)
            break
        for place, job in enumerate(found):
            kept.append(job)
            largest = max(largest, weight(job.event))
            size -= weight(job.event)
            if size <= 0:
                return kept, found[place + 1 :]
        if len(found) < asked:
            break
        step = max(1, min(2 * step, size // (2 * largest), MOST_AT_ONCE))
    return kept, []
