"""Manifests: what each commit added to an archive, and the catalog of everything that is committed.

    manifests/{channel}/p{partition}/{after}.json

The same commit always gives the same bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

import orjson

from holdfast.model.errors import HoldfastError, NotFound, ObjectConflict
from holdfast.pipeline.archive.objects import Written
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import ObjectStore, check_key

VERSION = 1
_FOLDER = "manifests"
_START = "0000"
"""Stands for the beginning of the log in a manifest's name; it sorts before every position."""
_DESCRIBED = ("object", "first", "last", "rows", "bytes", "sha256")
_PARALLEL = 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """The objects that hold a channel's events after one cursor position, up to and including another."""

    spot: ChannelPartition
    after: str | None
    objects: tuple[Written, ...]

    @property
    def name(self) -> str:
        """Its name in the store."""
        return manifest_name(self.spot.channel, self.spot.partition, self.after)

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


def manifest_folder(channel: str | None = None, partition: int = 0) -> str:
    """The folder of all manifests, or of the chain of one channel on one store."""
    return _FOLDER if channel is None else f"{_FOLDER}/{channel}/p{partition:03}"


def manifest_name(channel: str, partition: int, after: str | None) -> str:
    """By the cursor that it starts from: there can only be one."""
    return f"{manifest_folder(channel, partition)}/{after or _START}.json"


def decode_manifest(data: bytes, name: str) -> Manifest:
    """A manifest from its bytes. Raises `ObjectConflict` where they are none."""
    try:
        found = orjson.loads(data)
        spot = ChannelPartition(found["partition"], found["channel"])
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


def by_partition(written: Iterable[Written]) -> Iterator[tuple[ChannelPartition, tuple[Written, ...]]]:
    """What was written, by channel and store."""
    ordered = sorted(written, key=lambda each: (each.spot, each.first, each.object))
    for spot, objects in groupby(ordered, key=lambda each: each.spot):
        yield spot, tuple(objects)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Manifests in the order of their chains, and the names of those that cannot be read."""

    manifests: Sequence[Manifest]
    broken: Sequence[str]

    @property
    def objects(self) -> Iterator[Written]:
        """All objects that are committed."""
        return (each for manifest in self.manifests for each in manifest.objects)

    def of_day(self, folder: str) -> list[Written]:
        """The committed objects of one day."""
        return [each for each in self.objects if f"/{folder}/" in each.object]

    def gaps(self) -> Iterator[tuple[Manifest, str | None]]:
        """Manifests that do not start where the one before them ended, with where that is."""
        for _, chain in groupby(self.manifests, key=lambda each: each.spot):
            end: str | None = None
            for number, manifest in enumerate(sorted(chain, key=lambda each: each.after or "")):
                if number and manifest.after != end:
                    yield manifest, end
                end = manifest.last


def read_catalog(store: ObjectStore, channel: str | None = None) -> Catalog:
    """Read every manifest, of one channel or of all."""
    while True:
        with contextlib.suppress(NotFound):  # compacted, and the old ones removed, since they were listed
            return _read(store, channel)


def _read(store: ObjectStore, channel: str | None) -> Catalog:
    manifests: list[Manifest] = []
    broken: list[str] = []

    def read(name: str) -> Manifest | str:
        try:
            return decode_manifest(store.get(name), name)
        except ObjectConflict:
            return name

    folder = manifest_folder() + ("" if channel is None else f"/{channel}")
    names = [entry.name for entry in store.list(folder)]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for found in pool.map(read, names):
            if isinstance(found, str):
                broken.append(found)
            else:
                manifests.append(found)
    return Catalog(list(_effective(manifests)), [name for name in broken if not _is_within(name, manifests)])


def _effective(manifests: Iterable[Manifest]) -> Iterator[Manifest]:
    """In the order of their chains, without those that one before them has replaced: it goes as far."""
    end: tuple[ChannelPartition, str] | None = None
    for manifest in sorted(manifests, key=lambda each: (each.spot, each.after or "")):
        reached = (manifest.spot, manifest.last)
        if end is None or end[0] != manifest.spot or reached > end:
            end = reached
            yield manifest


def _is_within(name: str, manifests: Iterable[Manifest]) -> bool:
    """Whether a manifest that cannot be read is one that another has replaced."""
    return any(
        each.name.rpartition("/")[0] == name.rpartition("/")[0]
        and each.name < name < manifest_name(each.spot.channel, each.spot.partition, each.last)
        for each in manifests
    )


def intact_catalog(store: ObjectStore, channel: str | None = None) -> Catalog:
    """The catalog for those who rely on it: an unreadable manifest is an error."""
    catalog = read_catalog(store, channel)
    if catalog.broken:
        raise HoldfastError(
            f"{len(catalog.broken)} manifests of {store.url} cannot be read, {catalog.broken[0]} among them; "
            "see holdfast archive verify"
        )
    return catalog
