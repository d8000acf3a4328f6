"""Slices: how much of what is there makes a batch, and how a batch is divided among tasks. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from holdfast.model.log import Cut
from holdfast.pipeline.offsets import ChannelPartition, Range

FINE = 8
"""A limit is kept to about an eighth."""
BATCH_ROWS = 10_000
BATCH_BYTES = 16 << 20


class Slice(NamedTuple):
    """A part of a channel's log that one task reads in one go."""

    spot: ChannelPartition
    after: str | None
    until: str
    rows: int
    bytes: int

    @property
    def page(self) -> int:
        """How many events to hold in memory at once, going by their average size."""
        return max(1, min(BATCH_ROWS, BATCH_BYTES * self.rows // max(self.bytes, 1)))


def reach(rows: int, channels: int) -> int:
    """How far to look into each channel: all of a batch may come from one, but not from one of very many."""
    return min(rows, max(BATCH_ROWS, FINE * rows // channels))


def quotas(found: Sequence[Sequence[Cut]], rows: int, size: int) -> list[int]:
    """How many rows a batch takes from each channel: from each the same, but for those that have less.

    Where not even one from each fits, some channels have to wait; one row is always taken, however large.
    """

    def fits(share: int) -> bool:
        taken = sum(min(share, _rows(cuts)) for cuts in found)
        return taken <= rows and sum(weight(cuts, share) for cuts in found) <= size

    share = bisect_left(range(1, max(map(_rows, found), default=0) + 1), True, key=lambda s: not fits(s))
    return [min(share, _rows(cuts)) for cuts in found] if share else _singles(found, rows, size)


def _singles(found: Sequence[Sequence[Cut]], rows: int, size: int) -> list[int]:
    taken: list[int] = []
    for cuts in found:
        size -= weight(cuts, 1)
        taken.append(int(bool(cuts) and (not any(taken) or (sum(taken) < rows and size >= 0))))
    return taken


def _rows(cuts: Sequence[Cut]) -> int:
    return sum(cut.rows for cut in cuts)


def weight(cuts: Sequence[Cut], rows: int) -> int:
    """About how much data the first so many rows hold."""
    total = 0
    for cut in cuts:
        part = min(rows, cut.rows)
        total += cut.bytes * part // cut.rows
        rows -= part
    return total


def end(cuts: Sequence[Cut], quota: int) -> str:
    """The last cut within the quota; the first one, where even that goes beyond."""
    last = cuts[0]
    for cut, rows in zip(cuts, accumulate(cut.rows for cut in cuts), strict=True):
        last = cut if rows <= quota else last
    return last.position


def cut_slices(extent: Range, cuts: Sequence[Cut]) -> list[Slice]:
    """The parts of a range that its cuts make."""
    starts = [extent.after, *(cut.position for cut in cuts)]
    return [Slice(extent.spot, after, *cut) for after, cut in zip(starts, cuts, strict=False)]


def group_small(parts: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Neighbours that are read in one go: small ones up to a batch, a larger one by itself."""
    group: list[Slice] = []
    rows = size = 0
    for part in parts:
        rows, size = rows + part.rows, size + part.bytes
        if group and (rows > BATCH_ROWS or size > BATCH_BYTES):
            yield group
            group, rows, size = [], part.rows, part.bytes
        group.append(part)
    if group:
        yield group


def pack(parts: Sequence[Slice], rows: int) -> list[tuple[Slice, ...]]:
    """One group for each task: neighbours on the same store together, up to about so many rows."""
    groups: list[list[Slice]] = []
    filled = rows
    for part in parts:
        if filled + part.rows > rows or groups[-1][-1].spot.partition != part.spot.partition:
            groups.append([])
            filled = 0
        groups[-1].append(part)
        filled += part.rows
    return [tuple(group) for group in groups]
