"""Charts: a log from the outside, and where to cut it by its milestones.

How milestones come to be is told in `lua/shared/chart.lua`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.backends.redis.codec import position
from holdfast.backends.redis.epochs import Mark, epoch_of, parse_mark, place
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


class Chart(NamedTuple):
    """What one look at a log tells. `start` and `end` bound what was asked for; empty where it is nothing."""

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
        return not self.end or place(self.start) >= place(self.end)

    def position(self, entry: bytes) -> str | None:
        """The position of an entry of this log."""
        return position(epoch_of(self.marks, entry), entry) if entry else None


def parse_chart(answer: Sequence[Any], until: bool) -> Chart:
    """The answer of the script; `until` tells whether an end was asked for."""
    marks, trimmed, first, last, length, total, size, start, end, members = answer
    stop = end if until and end and last and place(end) < place(last) else last
    if not start:  # it is past the end
        stop = b""
    known = {milestone.entry: milestone for milestone in map(_milestone, members)}
    if stop and (stop == last or stop not in known):
        known[stop] = Milestone(stop, total if stop == last else None, size)
    anchor = known[start].ordinal if start in known else None
    if stop and place(start) < place(first):
        anchor = total - length
    ahead = [each for each in known.values() if stop and place(start) < place(each.entry) <= place(stop)]
    ahead.sort(key=lambda each: place(each.entry))
    return Chart([parse_mark(mark) for mark in marks], trimmed, first, last, start, stop, anchor, ahead)


def slices(points: Iterable[Point], limit: int, every: int) -> Iterator[tuple[bytes, int, int]]:
    """The ends of slices: the first point at or past each `every` rows, and past `limit` or the end."""
    rows = size = 0
    point = None
    for point in points:
        if point.rows - rows >= min(every, limit - rows):
            yield point.entry, point.rows - rows, point.bytes - size
            rows, size, point = point.rows, point.bytes, None
        if rows >= limit:
            return
    if point is not None:
        yield point.entry, point.rows - rows, point.bytes - size


def cuts(chart: Chart, points: Iterable[Point], limit: int, every: int) -> list[Cut]:
    """The same as positions."""
    return [
        Cut(position(epoch_of(chart.marks, entry), entry), rows, size)
        for entry, rows, size in slices(points, limit, every)
    ]


def _milestone(member: bytes) -> Milestone:
    entry, ordinal, size = member.split()
    milliseconds, seq = place(entry)
    return Milestone(b"%d-%d" % (milliseconds, seq), int(ordinal), int(size))
