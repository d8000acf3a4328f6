"""Batches: what one commit of the WAL holds, and the names that follow from positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Self

from holdfast.model.errors import Damaged, InvalidName

_BETWEEN = "@"
_PARTITION = re.compile(r"0|[1-9][0-9]{0,5}")


class BatchKey(NamedTuple):
    """A stretch of one channel on one store, by positions: they mean the same after any restart."""

    partition: int
    channel: str
    first: str
    last: str

    @property
    def name(self) -> str:
        """One part of an object's name. Sorts by channel, then by position."""
        return _BETWEEN.join((self.channel, str(self.partition), self.first, self.last))

    @classmethod
    def parse(cls, name: str) -> Self:
        """The key that a name means."""
        parts = name.split(_BETWEEN)
        if len(parts) != 4 or not _PARTITION.fullmatch(parts[1]):
            raise InvalidName(f"{name!r} is no batch; its name is CHANNEL@PARTITION@FIRST@LAST")
        channel, partition, first, last = parts
        return cls(int(partition), channel, first, last)


class Segment(NamedTuple):
    """One staged file, with what proves that it is whole."""

    name: str
    sha256: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What became pending in one step."""

    key: BatchKey
    after: str | None
    """Where the cursor stood; it moves from here to `key.last`."""
    segments: tuple[Segment, ...]
    created_at: datetime

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def channels(self) -> tuple[str, ...]:
        return (self.key.channel,)

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        return {
            "partition": self.key.partition,
            "channel": self.key.channel,
            "first": self.key.first,
            "last": self.key.last,
            "after": self.after,
            "created_at": self.created_at.isoformat(),
            "rows": self.rows,
            "segments": [segment._asdict() for segment in self.segments],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """As it was written; `Damaged` where it is a record of another kind, or of another version."""
        try:
            return cls(
                BatchKey(body["partition"], body["channel"], body["first"], body["last"]),
                body["after"],
                tuple(Segment(**segment) for segment in body["segments"]),
                datetime.fromisoformat(body["created_at"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(f"a record of the WAL is no batch of this version: {error!r}") from None
