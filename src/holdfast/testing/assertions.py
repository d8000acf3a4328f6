"""Assertions: what was published, and an error that shows what was there instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.bus.client import Bus
from holdfast.model.event import Event, LogEntry

_PAGE, _SHOWN = 1_000, 20
_MISSING = object()


async def events(bus: Bus, channel: str) -> list[Event]:
    """Return every event of a channel, in the order of each store's log."""
    found: list[LogEntry] = []
    for partition in range(len(bus.partitions.all)):
        after = None
        while page := await bus.read(channel, after=after, limit=_PAGE, partition=partition):
            found, after = found + page, page[-1].position
    return [entry.event for entry in found]


def assert_published(
    published: Sequence[Event],
    *,
    count: int | None = None,
    data: Any = _MISSING,
    **fields: Any,
) -> list[Event]:
    """Assert that events were published. Returns those that match.

    `data` compares the JSON value, `fields` are the event's: id, source, type, key, headers. Without `count`
    one match is enough; with it there must be exactly so many.
    """
    matching = [event for event in published if _matches(event, data, fields)]
    if len(matching) == count or (count is None and matching):
        return matching
    wanted = {**fields} if data is _MISSING else {"data": data, **fields}
    expected = "at least one event" if count is None else f"{count} events"
    shown = "\n".join(f"  {event!r}" for event in published[:_SHOWN]) or "  nothing"
    raise AssertionError(f"expected {expected} with {wanted}, found {len(matching)}; published:\n{shown}")


def _matches(event: Event, data: Any, fields: dict[str, Any]) -> bool:
    if data is not _MISSING and (not event.data or event.json() != data):
        return False
    return all(getattr(event, name) == value for name, value in fields.items())
