"""Offsets: how far each channel of each partition was read, as Spark keeps it in its checkpoint.

`{"0": {"orders": "0001-…"}}`: the partition is the store's place in the list of URLs, the position is that
of the last event that was read, and empty text stands before the first one. A channel that appears in a
running query enters the offsets at the place from which it is read, and its rows begin with the next batch:
so a batch is described by its two offsets alone, and can be read again from them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name
from holdfast.model.position import format_position, parse_position

_LAST = 2**63 - 1
_PARTITION = re.compile(r"0|[1-9][0-9]{0,3}")


class ChannelPartition(NamedTuple):
    """One channel on one store."""

    partition: int
    channel: str


Offsets = dict[ChannelPartition, str | None]
"""The last position that was read; None is the beginning of the log."""


class Range(NamedTuple):
    """What lies between two offsets on one channel of one store."""

    spot: ChannelPartition
    after: str | None
    until: str


def load(stored: Mapping[str, Mapping[str, str]], stores: int) -> Offsets:
    """Offsets from Spark's checkpoint. Raises `InvalidInput` for others, or a store that is not listed."""
    offsets: Offsets = {
        ChannelPartition(partition, channel): position or None
        for partition, channel, position in _entries(stored)
    }
    last = max((spot.partition for spot in offsets), default=0)
    if last >= stores:
        raise InvalidInput(
            f"the checkpoint was written with at least {last + 1} stores, and url lists {stores}; "
            "list the same stores in the same order, or start from a new checkpoint"
        )
    return offsets


def _entries(stored: Any) -> Iterator[tuple[int, str, str]]:
    """What a checkpoint says, if it is one: it may have been written by another source, or by hand."""
    for partition, channels in stored.items() if isinstance(stored, Mapping) else [("", None)]:
        if not isinstance(channels, Mapping) or not _PARTITION.fullmatch(partition):
            raise InvalidInput(
                f"the checkpoint's offsets are not those of this source at {partition!r}: they are "
                '{"PARTITION": {"CHANNEL": "POSITION"}}; start from a new checkpoint'
            )
        for channel, position in channels.items():
            if not isinstance(position, str):
                raise InvalidInput(
                    f"the checkpoint has the position {position!r} of channel {channel!r}, which is no text; "
                    "start from a new checkpoint"
                )
            yield int(partition), check_name(channel), position


def dump(offsets: Offsets) -> dict[str, dict[str, str]]:
    """Always the same text for the same offsets: Spark takes any other text for news."""
    stored: dict[str, dict[str, str]] = {}
    for spot, position in sorted(offsets.items(), key=lambda item: item[0]):
        stored.setdefault(str(spot.partition), {})[spot.channel] = position or ""
    return stored


def ranges(start: Offsets, end: Offsets) -> Iterator[Range]:
    """What a batch reads, in order."""
    for spot, until in sorted(end.items(), key=lambda item: item[0]):
        if spot in start and until is not None and is_after(until, start[spot]):
            yield Range(spot, start[spot], until)


def is_after(position: str, other: str | None) -> bool:
    """Whether an event at `position` follows what ends at `other`."""
    return other is None or position > other


def later(position: str | None, other: str | None) -> str | None:
    """The one of two positions that is further on."""
    return position if other is None or (position is not None and position > other) else other


def before(position: str) -> str:
    """The position right before another one, whether an event has it or not."""
    epoch, *fields = parse_position(position, position.count("-"))
    for index in reversed(range(len(fields))):
        if fields[index] > 0:
            fields[index] -= 1
            break
        fields[index] = _LAST
    return format_position(epoch, *fields)
