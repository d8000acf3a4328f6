"""Stream consumers: who reads a log by a cursor, how far behind, and their end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from holdfast.contracts import Backend
from holdfast.model.errors import NotFound
from holdfast.upkeep.retention import COUNTED


class Stream(NamedTuple):
    """A stream consumer on one store."""

    channel: str
    consumer: str
    partition: int
    position: str | None
    """Its sink is durable up to here; None: nothing yet."""
    moved_at: datetime
    behind: int
    """Events after it, counted up to 1,000,000: retention keeps them for it."""
    oldest: datetime | None
    """When the first of them was published."""


async def streams(
    stores: Sequence[Backend], channel: str | None = None, consumer: str | None = None
) -> list[Stream]:
    """Those of one channel or of all; `NotFound` for a channel, or a consumer of it, that is not there."""
    if channel is not None and not any([channel in await store.channels() for store in stores]):
        raise NotFound(f"there is no channel {channel!r}; 'holdfast channels list' shows all")
    found = []
    for partition, store in enumerate(stores):
        for cursor in await store.cursors(channel):
            if consumer in (None, cursor.name):
                lag = await store.behind(cursor.channel, cursor.position, COUNTED)
                where = (cursor.channel, cursor.name, partition, cursor.position, cursor.moved_at)
                found.append(Stream(*where, lag.events, lag.oldest))
    if consumer is not None and not found:
        raise NotFound(f"channel {channel!r} has no stream consumer {consumer!r}")
    return sorted(found)


async def remove_stream(stores: Sequence[Backend], channel: str, consumer: str) -> None:
    """End a stream consumer on every store: retention waits for it no longer."""
    for store in stores:
        if channel in await store.channels():
            await store.detach(channel, consumer)


def warning(found: Sequence[Stream]) -> str:
    """What the end of a stream consumer means for what it has not read."""
    behind = sum(each.behind for each in found)
    return (
        f"{found[0].consumer} of {found[0].channel} is {behind:,} events behind; retention keeps them for it "
        "and may trim them unread once it is removed"
    )
