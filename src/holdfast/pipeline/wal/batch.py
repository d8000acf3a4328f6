"""Batches: what one commit of the WAL holds, and the names and ids that follow from its content."""

from __future__ import annotations

import hashlib
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple, Self

import orjson

from holdfast.model.errors import Damaged
from holdfast.pipeline.offsets import ChannelPartition

_NAMESPACE = uuid.UUID("6e0d0a1e-6d1c-5a53-9c4f-2f0d1b6c8a77")
VERSION = 1
"""Of the records; one of another version is not read."""


def transaction_id(channel: str, source: str, event_id: str) -> str:
    """The idempotency key of an event as 32 hexadecimal digits, the same on every read of it.

    Each part is length-prefixed, so that no two keys can run together into the same text.
    """
    return _digest(_prefix(channel, source), event_id).hex()


def transaction_ids(
    channels: Iterable[str], sources: Iterable[str], ids: Iterable[str]
) -> tuple[list[str], list[int]]:
    """The transaction ids of many events, and the 64 bits of each that joins compare."""
    prefixes: dict[tuple[str, str], hashlib._Hash] = {}
    texts, hashes = [], []
    for channel, source, event_id in zip(channels, sources, ids, strict=True):
        prefix = prefixes.get((channel, source))
        if prefix is None:
            prefix = prefixes[channel, source] = _prefix(channel, source)
        digest = _digest(prefix, event_id)
        texts.append(digest.hex())
        hashes.append(int.from_bytes(digest[:8], "big", signed=True))
    return texts, hashes


def failed_id(batch: str, name: str) -> str:
    """The id of a failed record, by its name in its batch: one, however often it is written down."""
    return str(uuid.uuid5(_NAMESPACE, f"{batch}/{name}"))


def _prefix(channel: str, source: str) -> hashlib._Hash:
    hasher = hashlib.sha256()
    for part in (channel.encode(), source.encode()):
        hasher.update(b"%d:%b" % (len(part), part))
    return hasher


def _digest(prefix: hashlib._Hash, event_id: str) -> bytes:
    hasher, part = prefix.copy(), event_id.encode()
    hasher.update(b"%d:%b" % (len(part), part))
    return hasher.digest()[:16]


class BatchPart(NamedTuple):
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
    def spot(self) -> ChannelPartition:
        return ChannelPartition(self.partition, self.channel)

    def holds(self, spot: ChannelPartition, position: str) -> bool:
        """Whether a place in the log lies within it."""
        return self.spot == spot and self.first <= position <= self.last


class Segment(NamedTuple):
    """One staged file, with what proves that it is whole."""

    name: str
    sha256: str
    rows: int
    bytes: int
    invalid: int | None = None
    """Rows that are not valid; None in a record that does not say."""


class StagedSegment(NamedTuple):
    """A segment, and which parts of the log it holds."""

    parts: tuple[BatchPart, ...]
    segment: Segment


@dataclass(frozen=True)
class WalBatch:
    """What became pending in one step."""

    parts: tuple[BatchPart, ...]
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
        """A batch from its record, or, without segments, from its plan. Raises `Damaged` where it is a record
        of another kind or version."""
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


def _part(partition: int, channel: str, first: str, last: str, rows: int, **more: Any) -> BatchPart:
    if not (isinstance(partition, int) and all(isinstance(each, str) for each in (channel, first, last))):
        raise TypeError(f"a part {partition!r} of {channel!r} from {first!r} to {last!r}")
    return BatchPart(partition, channel, first, last, rows=int(rows), **more)


def batch_of(staged: Iterable[StagedSegment], now: datetime) -> WalBatch:
    """One batch of everything that was staged: segments in the order of the log, ranges joined."""
    found: dict[ChannelPartition, list[BatchPart]] = defaultdict(list)
    ordered = sorted(staged, key=lambda each: each.parts[0])
    for each in ordered:
        for part in each.parts:
            found[part.spot].append(part)
    parts = tuple(_joined(found[spot]) for spot in sorted(found))
    return WalBatch(parts, tuple(each.segment for each in ordered), now)


def _joined(parts: list[BatchPart]) -> BatchPart:
    begin = min(parts, key=lambda part: part.first)
    return begin._replace(last=max(part.last for part in parts), rows=sum(part.rows for part in parts))
