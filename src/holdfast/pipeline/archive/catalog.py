"""The catalog: everything that is committed in an archive, from its manifests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, NotFound, ObjectConflict
from holdfast.pipeline.archive import naming
from holdfast.pipeline.archive.manifest import Manifest, Written, decode
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ABREAST = 16
_TASKS = 200
_OBJECTS = (
    "object string, channel string, partition int, first string, last string, rows long, bytes long, "
    "sha256 string"
)


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
            return decode(store.get(name), name)
        except ObjectConflict:
            return name

    folder = naming.manifest_folder() + ("" if channel is None else f"/{channel}")
    names = [entry.name for entry in store.list(folder)]
    with ThreadPoolExecutor(_ABREAST) as pool:
        for found in pool.map(read, names):
            if isinstance(found, str):
                broken.append(found)
            else:
                manifests.append(found)
    return Catalog(list(_effective(manifests)), [name for name in broken if not _is_within(name, manifests)])


def _effective(manifests: Iterable[Manifest]) -> Iterator[Manifest]:
    """In the order of their chains, without those that one before them has replaced: it goes as far."""
    end: tuple[Spot, str] | None = None
    for manifest in sorted(manifests, key=lambda each: (each.spot, each.after or "")):
        reached = (manifest.spot, manifest.last)
        if end is None or end[0] != manifest.spot or reached > end:
            end = reached
            yield manifest


def _is_within(name: str, manifests: Iterable[Manifest]) -> bool:
    """Whether a manifest that cannot be read is one that another has replaced."""
    return any(
        each.name.rpartition("/")[0] == name.rpartition("/")[0]
        and each.name < name < naming.manifest_name(each.spot.channel, each.spot.partition, each.last)
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


def frame(spark: SparkSession, objects: Iterable[Written]) -> DataFrame:
    """Objects as rows, spread over tasks."""
    rows = list(objects)
    return spark.createDataFrame(rows, _OBJECTS).repartition(max(1, min(len(rows), _TASKS)))
