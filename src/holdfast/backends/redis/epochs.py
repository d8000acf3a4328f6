"""Epochs: to which life of the store each entry of a log belongs."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int]
"""An entry's id as numbers: milliseconds, sequence."""
Mark = tuple[int, Place]
"""An epoch, and the entry after which it begins."""


def parse_mark(mark: bytes) -> Mark:
    """A mark as it is stored."""
    epoch, _, entry = mark.partition(b" ")
    return int(epoch), place(entry)


def place(entry: bytes) -> Place:
    """An entry's id as numbers that compare."""
    milliseconds, _, seq = entry.partition(b"-")
    return int(milliseconds), int(seq)


def epoch_of(marks: Sequence[Mark], entry: bytes) -> int:
    """The epoch of an entry."""
    if len(marks) == 1:
        return marks[0][0]
    here = place(entry)
    return next(epoch for epoch, start in reversed(marks) if start < here or (epoch, start) == marks[0])
