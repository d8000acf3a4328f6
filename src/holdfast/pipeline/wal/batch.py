"""Batches: what one commit of the WAL holds, and the names that follow from positions."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Self

import orjson

from holdfast.model.errors import Damaged
from holdfast.pipeline.offsets import Spot

VERSION = 1
"""Of the records; one of another version is not read."""


class Part(NamedTuple):
    """What a batch holds of one channel on one store: a range by positions, which mean the same after any
    restart."""

    partition: int
    channel: str
    first: str
    last: str
    after: str | None = None
    """Where the cursor stood; it moves from here to `last`."""
    rows: int = 0
    since: str | None = None
    """When its first event was published, by the store's clock; None where that was not asked."""

    @property
    def spot(self) -> Spot:
        return Spot(self.partition, self.channel)

    def holds(self, spot: Spot, position: str) -> bool:
        """Whether a place in the log lies within it."""
        return self.spot == spot and self.first <= position <= self.last


class Segment(NamedTuple):
    """One staged file, with what proves that it is whole."""

    name: str
    sha256: str
    rows: int
    bytes: int
    invalid: int | None = None
    """Rows that validation found wanting; None in a record that does not say."""


class Staged(NamedTuple):
    """A segment, and which parts of the log it holds."""

    parts: tuple[Part, ...]
    segment: Segment


@dataclass(frozen=True)
class Batch:
    """What became pending in one step."""

    parts: tuple[Part, ...]
    """One for each channel of each store, in order."""
    segments: tuple[Segment, ...]
    created_at: datetime

    @cached_property
    def name(self) -> str:
        """From the ranges alone, so that the same ranges read again are the same batch."""
        return hashlib.sha256(orjson.dumps(self.ranges)).hexdigest()[:32]

    @property
    def ranges(self) -> list[tuple[int, str, str, str]]:
        """Partition, channel, first and last position of each part, in order."""
        return sorted(part[:4] for part in self.parts)

    @property
    def channels(self) -> tuple[str, ...]:
        return tuple(sorted({part.channel for part in self.parts}))

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return self.plan() | {"segments": [segment._asdict() for segment in self.segments]}

    def plan(self) -> dict[str, Any]:
        """What is written before it is pending: which ranges it holds."""
        parts = [part._asdict() for part in self.parts]
        return {"version": VERSION, "created_at": self.created_at.isoformat(), "parts": parts}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """As it was written, without segments from its plan; `Damaged` where it is a record of another kind,
        or of another version."""
        try:
            if body["version"] != VERSION:
                raise ValueError(f"version {body['version']}")
            return cls(
                tuple(_part(**part) for part in body["parts"]),
                tuple(Segment(**segment) for segment in body.get("segments", ())),
                datetime.fromisoformat(body["created_at"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"a record of the WAL is no batch of this version: {error!r}") from None


def _part(partition: int, channel: str, first: str, last: str, rows: int, **more: Any) -> Part:
    if not (isinstance(partition, int) and all(isinstance(each, str) for each in (channel, first, last))):
        raise TypeError(f"a part {partition!r} of {channel!r} from {first!r} to {last!r}")
    return Part(partition, channel, first, last, rows=int(rows), **more)


def batch_of(staged: Iterable[Staged], now: datetime) -> Batch:
    """One batch of everything that was staged: segments in the order of the log, ranges joined."""
    found: dict[Spot, list[Part]] = defaultdict(list)
    ordered = sorted(staged, key=lambda each: each.parts[0])
    for each in ordered:
        for part in each.parts:
            found[part.spot].append(part)
    parts = tuple(_joined(found[spot]) for spot in sorted(found))
    return Batch(parts, tuple(each.segment for each in ordered), now)


def _joined(parts: list[Part]) -> Part:
    begin = min(parts, key=lambda part: part.first)
    return begin._replace(last=max(part.last for part in parts), rows=sum(part.rows for part in parts))
