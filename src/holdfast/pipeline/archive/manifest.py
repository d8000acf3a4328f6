"""Manifests: what a commit added to the archive. Always the same bytes for the same commit."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from holdfast.model.errors import ObjectConflict
from holdfast.pipeline.archive import naming
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores.contract import check_key

VERSION = 1
_DESCRIBED = ("object", "first", "last", "rows", "bytes", "sha256")


class Written(NamedTuple):
    """An object that is durable, as the executor that wrote it describes it."""

    object: str
    channel: str
    partition: int
    first: str
    last: str
    rows: int
    bytes: int
    sha256: str

    @property
    def spot(self) -> Spot:
        """Where its events are from."""
        return Spot(self.partition, self.channel)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The objects that hold a channel's events after one cursor position, up to and including another."""

    spot: Spot
    after: str | None
    objects: tuple[Written, ...]

    @property
    def name(self) -> str:
        """Its name in the store."""
        return naming.manifest_name(self.spot.channel, self.spot.partition, self.after)

    @property
    def first(self) -> str:
        """The position of its first event."""
        return min(each.first for each in self.objects)

    @property
    def last(self) -> str:
        """The position of its last event: the cursor after it."""
        return max(each.last for each in self.objects)

    @property
    def rows(self) -> int:
        """How many events it covers."""
        return sum(each.rows for each in self.objects)

    def encode(self) -> bytes:
        """As JSON on one line."""
        return orjson.dumps(
            {
                "version": VERSION,
                "channel": self.spot.channel,
                "partition": self.spot.partition,
                "after": self.after,
                "first": self.first,
                "last": self.last,
                "rows": self.rows,
                "objects": [
                    {name: getattr(each, name) for name in _DESCRIBED}
                    for each in sorted(self.objects, key=lambda each: (each.first, each.object))
                ],
            },
            option=orjson.OPT_APPEND_NEWLINE,
        )


def decode(data: bytes, name: str) -> Manifest:
    """A manifest from its bytes; `ObjectConflict` where they are none."""
    try:
        found = orjson.loads(data)
        spot = Spot(found["partition"], found["channel"])
        objects = tuple(
            Written(channel=spot.channel, partition=spot.partition, **each) for each in found["objects"]
        )
        manifest = Manifest(spot, found["after"], objects)
        sound = all(map(_is_sound, objects)) and type(spot.partition) is int
        if found["version"] == VERSION and sound and manifest.name == name and manifest.encode() == data:
            return manifest
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ObjectConflict(f"{name} is not a manifest of version {VERSION}, or it is damaged; restore it")


def _is_sound(written: Written) -> bool:
    """Whether a description can be one: what it says is used as names, and in sums."""
    check_key(written.object)
    numbers = all(type(each) is int for each in (written.rows, written.bytes))
    return numbers and isinstance(written.sha256, str)


def by_spot(written: Iterable[Written]) -> Iterator[tuple[Spot, tuple[Written, ...]]]:
    """What was written, channel by channel."""
    ordered = sorted(written, key=lambda each: (each.spot, each.first, each.object))
    for spot, objects in itertools.groupby(ordered, key=lambda each: each.spot):
        yield spot, tuple(objects)
