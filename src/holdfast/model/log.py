"""The log in bulk: its extent, where to cut it, and pages of it by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

PARTS = 32 << 20
"""Bytes of data that are read with parts of many channels at once, about."""


@dataclass(frozen=True, slots=True)
class Extent:
    """From where to where a channel's log can be read."""

    trimmed: str | None
    """Whatever stood at or below this position was removed. None: nothing was, as far as the store knows."""
    first: str | None
    """The oldest event that is there."""
    last: str | None
    """The newest event that a reader may see: nothing can still commit below it."""


class Cut(NamedTuple):
    """The end of a slice of the log: its last event, and how much the slice holds."""

    position: str
    rows: int
    bytes: int
    """About how much data; an estimate from a sample will do."""


class Page(NamedTuple):
    """Some events of one channel in log order, column by column: what Arrow wants, without an object each."""

    positions: list[str]
    ids: list[str]
    sources: list[str]
    types: list[str]
    keys: list[str | None]
    times: list[int]
    """Microseconds since 1970; where the publisher gave no time, the time of publishing."""
    headers: list[Mapping[str, str]]
    data: list[bytes]


class Part(NamedTuple):
    """A part of one channel's log: after one position, up to and including another."""

    channel: str
    after: str | None
    until: str


class Waiting(NamedTuple):
    """What follows a position on one channel."""

    trimmed: str | None
    last: str | None
    """Both as in `Extent`."""
    rows: int
    """Counted up to the limit that was asked for."""
    bytes: int
    """About how much data they hold."""
    oldest: datetime | None
    """When the first of them was published."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind the end of the log a position is."""

    events: int
    """Counted up to the limit that was asked for."""
    oldest: datetime | None
    """When the first event after the position was published."""


def joined(pages: Sequence[Page]) -> Page:
    """Return the pages as one, in their order."""
    columns: Any = zip(*pages, strict=True) if pages else [()] * len(Page._fields)
    return Page(*(list(chain.from_iterable(column)) for column in columns))
