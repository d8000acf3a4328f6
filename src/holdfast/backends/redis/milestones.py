"""Milestones: what is known of a log without reading it, and where to cut it.

How milestones come to be is described in `lua/shared/milestones.lua`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.backends.redis.codec import Mark, epoch_of, parse_id, parse_mark, position
from holdfast.model.log import Cut

STEP = 500
"""How far apart milestones are, about: the same as in the script."""


class Milestone(NamedTuple):
    """An entry with how many were appended up to it, where that is known, and the size of those around it."""

    entry: bytes
    ordinal: int | None
    bytes: int


class Point(NamedTuple):
    """An entry with how much lies between the start and it, itself included."""

    entry: bytes
    rows: int
    bytes: int


class LogOverview(NamedTuple):
    """A log from the outside. `start` and `end` bound what was asked for; empty where it is nothing."""

    marks: list[Mark]
    trimmed: bytes
    first: bytes
    last: bytes
    start: bytes
    end: bytes
    anchor: int | None
    """The ordinal at `start`, where it is known."""
    ahead: list[Milestone]
    """What is known after the start, up to and including the end."""

    @property
    def empty(self) -> bool:
        """Whether nothing lies between start and end."""
        return not self.end or parse_id(self.start) >= parse_id(self.end)

    def position(self, entry: bytes) -> str | None:
        """The position of an entry of this log."""
        return position(epoch_of(self.marks, entry), entry) if entry else None


def parse_overview(answer: Sequence[Any], until: bool) -> LogOverview:
    """Parse the answer of the script. `until`: whether an end was asked for."""
    marks, trimmed, first, last, length, total, size, start, end, members = answer
    stop = end if until and end and last and parse_id(end) < parse_id(last) else last
    if not start:  # it is past the end
        stop = b""
    known = {milestone.entry: milestone for milestone in map(_milestone, members)}
    if stop and (stop == last or stop not in known):
        known[stop] = Milestone(stop, total if stop == last else None, size)
    anchor = known[start].ordinal if start in known else None
    if stop and parse_id(start) < parse_id(first):
        anchor = total - length
    ahead = [
        each for each in known.values() if stop and parse_id(start) < parse_id(each.entry) <= parse_id(stop)
    ]
    ahead.sort(key=lambda each: parse_id(each.entry))
    return LogOverview([parse_mark(mark) for mark in marks], trimmed, first, last, start, stop, anchor, ahead)


def cuts(log: LogOverview, points: Iterable[Point], limit: int, every: int) -> Iterator[Cut]:
    """Yield slices that end at the first point at or past each `every` rows, and past `limit` or the end."""
    rows = size = 0

    def cut(end: Point) -> Cut:
        return Cut(position(epoch_of(log.marks, end.entry), end.entry), end.rows - rows, end.bytes - size)

    point = None
    for point in points:
        if point.rows - rows >= min(every, limit - rows):
            yield cut(point)
            rows, size, point = point.rows, point.bytes, None
        if rows >= limit:
            return
    if point is not None:
        yield cut(point)


def _milestone(member: bytes) -> Milestone:
    entry, ordinal, size = member.split()
    milliseconds, seq = parse_id(entry)
    return Milestone(b"%d-%d" % (milliseconds, seq), int(ordinal), int(size))
