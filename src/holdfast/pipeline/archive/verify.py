"""Verify: every object against its manifest, every manifest against its chain, its chain against the cursor
and the log, and what nobody lists.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson
import pyarrow as pa

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.archive import naming
from holdfast.pipeline.archive.catalog import Catalog, frame, read_catalog
from holdfast.pipeline.archive.compaction import superseded
from holdfast.pipeline.archive.manifest import Manifest, Written
from holdfast.pipeline.archive.objects import Lines, read_lines, unpacked
from holdfast.pipeline.archive.origin import Origin
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.stores.address import cloud_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["missing", "damaged", "orphaned", "unlisted", "gap", "uncommitted"]
_FOUND = "kind string, object string, message string"


class Problem(NamedTuple):
    """Something that is not as it should be."""

    kind: Kind
    object: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What was looked at, and what was found."""

    manifests: int
    objects: int
    rows: int
    problems: list[Problem]
    compared: bool
    """Whether the store was asked how far its archive goes. Otherwise what is missing at the end of a channel
    cannot be seen."""
    unassigned: tuple[str, ...] = ()
    """Channels that the archiver has begun, of which nothing is here; nothing says whether it should be."""

    @property
    def sound(self) -> bool:
        """Objects beyond the cursor are an archiver's work in progress; everything else is a fault. Without a
        cursor nothing tells the two apart."""
        return all(problem.kind == "uncommitted" and self.compared for problem in self.problems)


def verify(spark: SparkSession, destination: str, origin: Origin | None = None) -> Report:
    """Read everything back, and ask the store how far it goes. A running archiver is not disturbed."""
    store = open_store(destination)
    there = [entry.name for entry in store.list("archive")]  # first: what is committed meanwhile is listed
    cursors = {} if origin is None else origin.cursors()
    catalog = read_catalog(store)
    objects = list(catalog.objects)
    problems = [Problem("damaged", name, "not a manifest, or damaged") for name in catalog.broken]
    for manifest, end in catalog.gaps():
        message = f"starts after {manifest.after}, and the one before it ends at {end}: one is missing"
        problems.append(Problem("gap", manifest.name, message))
    if objects:
        check = CheckObjects(destination, cloud_environment())
        rows = frame(spark, objects).mapInArrow(check, _FOUND).collect()
        problems += sorted(Problem(*row) for row in rows)
    ends = _ends(catalog)
    problems += _unlisted(store, catalog, there, {**ends, **_later(cursors, ends)})
    unassigned: set[str] = set()
    if origin is not None:
        known = {*ends, *(Spot(b.partition, b.channel) for name in there if (b := naming.parse_object(name)))}
        problems += _behind_cursor(origin, ends, known, cursors)
        problems += _unlike_log(origin, catalog)
        unassigned = {spot.channel for spot in cursors.keys() - known if origin.unassigned(spot)}
    counts = (len(catalog.manifests), len(objects), sum(each.rows for each in objects))
    return Report(*counts, problems, origin is not None, tuple(sorted(unassigned)))


def _ends(catalog: Catalog) -> dict[Spot, str]:
    """Where the chains end."""
    ends: dict[Spot, str] = {}
    for manifest in catalog.manifests:
        ends[manifest.spot] = max(manifest.last, ends.get(manifest.spot, ""))
    return ends


def _later(cursors: Mapping[Spot, str], ends: Mapping[Spot, str]) -> dict[Spot, str]:
    return {spot: max(cursor, ends.get(spot, "")) for spot, cursor in cursors.items()}


def _behind_cursor(
    origin: Origin, ends: Mapping[Spot, str], known: set[Spot], cursors: Mapping[Spot, str]
) -> Iterator[Problem]:
    """Chains that end before their cursor: what lies between was archived, and may be trimmed."""
    for spot, cursor in sorted(cursors.items()):
        end = ends.get(spot)
        if cursor > (end or "") and (spot in known or origin.belongs(spot)):
            where = naming.manifest_folder(spot.channel, spot.partition)
            begun = f"ends at {end}" if end else "has no manifest"
            message = f"{begun}, and the cursor of {origin.consumer!r} stands at {cursor}: some are missing"
            yield Problem("gap", where, message)


def _unlike_log(origin: Origin, catalog: Catalog) -> Iterator[Problem]:
    """Manifests that list more or fewer events than the log has in their place, where it still has them."""
    for spot, manifests in groupby(catalog.manifests, key=lambda each: each.spot):
        trimmed, last = origin.extent(spot)
        whole = list(manifests)
        if begins_late(origin, whole[0]):
            message = f"begins after {whole[0].after}, and the log has events before that: some are missing"
            yield Problem("gap", whole[0].name, f"{message}; see holdfast archive repair")
        chain = [each for each in whole if (each.after or "") >= trimmed and each.last <= last]
        if not chain or origin.count(spot, chain[0].after, chain[-1].last) == sum(m.rows for m in chain):
            continue
        for manifest in chain:
            count = origin.count(spot, manifest.after, manifest.last)
            if count != manifest.rows:
                message = f"lists {manifest.rows} events, and the log has {count} in their place"
                yield Problem("gap", manifest.name, message)


def begins_late(origin: Origin, first: Manifest) -> bool:
    """Whether the log has events from before the first manifest of a chain: its beginning is lost, or was
    archived elsewhere."""
    known = first.spot.partition < len(origin.connection.backends)
    return first.after is not None and known and origin.count(first.spot, None, first.after) > 0


def _unlisted(
    store: ObjectStore, catalog: Catalog, there: list[str], ends: Mapping[Spot, str]
) -> Iterator[Problem]:
    """Objects that are in no manifest. Only one whose every event is in another object can be removed."""
    known = {each.object for each in catalog.objects} | superseded(store)
    for name in sorted(set(there) - known):
        batch, lines = naming.parse_object(name), read_lines(store, name)
        if lines is not None and _is_elsewhere(store, catalog, lines):
            message = (
                f"in no manifest; all its {len(lines.events)} events are in others, and it can be removed"
            )
            yield Problem("orphaned", name, message)
        elif batch is not None and batch.last > ends.get(Spot(batch.partition, batch.channel), ""):
            yield Problem("uncommitted", name, "beyond the last manifest: an archiver is, or was, at work")
        elif lines is None:
            yield Problem("orphaned", name, "in no manifest, and not readable: what it holds is not known")
        else:
            message = f"in no manifest, and {len(lines.events)} events may be nowhere else: do not remove it"
            yield Problem("unlisted", name, f"{message}; see holdfast archive repair")


def _is_elsewhere(store: ObjectStore, catalog: Catalog, lines: Lines) -> bool:
    """Whether every event of an object is in objects that are committed and whole."""
    missing, own = set(lines.events), lines.written
    for each in catalog.objects:
        if each.spot == own.spot and each.first <= own.last and own.first <= each.last:
            found = read_lines(store, each.object)
            if found is not None and found.written == each:
                missing -= set(found.events)
    return not missing


@dataclass(frozen=True)
class CheckObjects:
    """For `mapInArrow`: descriptions of objects in, problems out."""

    destination: str
    environment: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Check the objects of a task."""
        store = open_store(self.destination, self.environment)
        for batch in batches:
            found = [problem for row in batch.to_pylist() if (problem := check(store, Written(**row)))]
            columns = [[problem[place] for problem in found] for place in range(3)]
            yield pa.RecordBatch.from_arrays(
                [pa.array(column, pa.string()) for column in columns], names=["kind", "object", "message"]
            )


def check(store: ObjectStore, written: Written) -> Problem | None:
    """Read one object back."""
    try:
        data = store.get(written.object)
    except NotFound:
        return Problem("missing", written.object, f"{written.rows} rows of {written.channel} are gone")
    if len(data) != written.bytes or hashlib.sha256(data).hexdigest() != written.sha256:
        return Problem(
            "damaged",
            written.object,
            f"{len(data)} bytes with another length or checksum than its manifest has",
        )
    try:
        lines = unpacked(written.object, data).splitlines()
        ends = [orjson.loads(line)["position"] for line in (lines[0], lines[-1])]
    except (Damaged, ValueError, LookupError, TypeError):
        return Problem("damaged", written.object, "has its checksum, and is no gzip of our lines")
    if (len(lines), *ends) != (written.rows, written.first, written.last):
        return Problem("damaged", written.object, "has its checksum, and other rows than its manifest says")
    return None
