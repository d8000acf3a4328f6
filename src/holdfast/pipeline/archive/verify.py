"""Verify: every object against its manifest, every manifest against its chain, and each chain against the
cursor and the log of the stores that it comes from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson
import pyarrow as pa

from holdfast.model.errors import Damaged, NotFound
from holdfast.model.names import selects
from holdfast.pipeline.archive.compaction import superseded
from holdfast.pipeline.archive.lines import object_frame
from holdfast.pipeline.archive.manifests import Catalog, Manifest, manifest_folder, read_catalog
from holdfast.pipeline.archive.objects import ObjectContent, Written, decompressed, parse_object, read_object
from holdfast.pipeline.archive.policy import ARCHIVER
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.staging import read_range
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.planner import NO_LIMIT
from holdfast.pipeline.stores import ObjectStore, cloud_environment, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


ProblemKind = Literal["missing", "damaged", "orphaned", "unlisted", "gap", "uncommitted"]
_FOUND = "kind string, object string, message string"


@dataclass(frozen=True)
class Origin:
    """The channels of one archive in their stores."""

    connection: Connection
    consumer: str = ARCHIVER
    streams: Sequence[str] = ()
    """Patterns of channels that belong into the archive, whether it has any of them or not."""

    elsewhere: Sequence[str] = ()
    """Patterns of channels that belong into another one."""

    def cursors(self) -> dict[ChannelPartition, str]:
        """Up to where events were archived, for every channel that the archiver has begun."""
        return {
            ChannelPartition(partition, cursor.channel): cursor.position
            for partition, backend in enumerate(self.connection.backends)
            for cursor in self.connection.run(backend.cursors.all())
            if cursor.name == self.consumer and cursor.position is not None
        }

    def belongs(self, spot: ChannelPartition) -> bool:
        """Whether a channel is to be in the archive."""
        return any(selects(stream, spot.channel) for stream in self.streams)

    def unassigned(self, spot: ChannelPartition) -> bool:
        """Whether nothing says in which archive a channel is to be."""
        return not any(selects(stream, spot.channel) for stream in (*self.streams, *self.elsewhere))

    def extent(self, spot: ChannelPartition) -> tuple[str, str]:
        """After which and up to which position the log can be read; empty text where there is none."""
        if spot.partition >= len(self.connection.backends):
            return "", ""
        found = self.connection.run(self.connection.backends[spot.partition].log.extent(spot.channel))
        return found.trimmed or "", found.last or ""

    def count(self, spot: ChannelPartition, after: str | None, until: str) -> int:
        """How many events the log has after one position, up to and including another."""
        backend = self.connection.backends[spot.partition]
        cuts = backend.log.cuts(spot.channel, after, NO_LIMIT, NO_LIMIT, until)
        return sum(cut.rows for cut in self.connection.run(cuts))

    def rows(self, spot: ChannelPartition, after: str | None, until: str) -> Iterator[pa.RecordBatch]:
        """The events between two positions; `DataLost` where some were trimmed."""
        return read_range(self.connection, spot, after, until)


class ArchiveProblem(NamedTuple):
    """Something that is not as it should be."""

    kind: ProblemKind
    object: str
    message: str


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what was found."""

    manifests: int
    objects: int
    rows: int
    problems: list[ArchiveProblem]
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


def verify(spark: SparkSession, destination: str, origin: Origin | None = None) -> VerifyReport:
    """Read everything back, and compare it with the stores. A running archiver is not disturbed."""
    store = open_store(destination)
    there = [entry.name for entry in store.list("archive")]  # first: what is committed meanwhile is listed
    cursors = {} if origin is None else origin.cursors()
    catalog = read_catalog(store)
    objects = list(catalog.objects)
    problems = [ArchiveProblem("damaged", name, "not a manifest, or damaged") for name in catalog.broken]
    for manifest, end in catalog.gaps():
        message = f"starts after {manifest.after}, and the one before it ends at {end}: one is missing"
        problems.append(ArchiveProblem("gap", manifest.name, message))
    if objects:
        check = CheckObjects(destination, cloud_environment())
        rows = object_frame(spark, objects).mapInArrow(check, _FOUND).collect()
        problems += sorted(ArchiveProblem(*row) for row in rows)
    ends = _ends(catalog)
    reached = ends | {spot: max(cursor, ends.get(spot, "")) for spot, cursor in cursors.items()}
    problems += _unlisted(store, catalog, there, reached)
    unassigned: set[str] = set()
    if origin is not None:
        known = {*ends, *(named.spot for name in there if (named := parse_object(name)))}
        problems += _behind_cursor(origin, ends, known, cursors)
        problems += _unlike_log(origin, catalog)
        unassigned = {spot.channel for spot in cursors.keys() - known if origin.unassigned(spot)}
    counts = (len(catalog.manifests), len(objects), sum(each.rows for each in objects))
    return VerifyReport(*counts, problems, origin is not None, tuple(sorted(unassigned)))


def _ends(catalog: Catalog) -> dict[ChannelPartition, str]:
    """Where the chains end."""
    ends: dict[ChannelPartition, str] = {}
    for manifest in catalog.manifests:
        ends[manifest.spot] = max(manifest.last, ends.get(manifest.spot, ""))
    return ends


def _behind_cursor(
    origin: Origin,
    ends: Mapping[ChannelPartition, str],
    known: set[ChannelPartition],
    cursors: Mapping[ChannelPartition, str],
) -> Iterator[ArchiveProblem]:
    """Chains that end before their cursor: what lies between was archived, and may be trimmed."""
    for spot, cursor in sorted(cursors.items()):
        end = ends.get(spot)
        if cursor > (end or "") and (spot in known or origin.belongs(spot)):
            where = manifest_folder(spot.channel, spot.partition)
            begun = f"ends at {end}" if end else "has no manifest"
            message = f"{begun}, and the cursor of {origin.consumer!r} stands at {cursor}: some are missing"
            yield ArchiveProblem("gap", where, message)


def _unlike_log(origin: Origin, catalog: Catalog) -> Iterator[ArchiveProblem]:
    """Manifests that list more or fewer events than the log has in their place, where it still has them."""
    for spot, manifests in groupby(catalog.manifests, key=lambda each: each.spot):
        trimmed, last = origin.extent(spot)
        whole = list(manifests)
        if begins_late(origin, whole[0]):
            message = f"begins after {whole[0].after}, and the log has events before that: some are missing"
            yield ArchiveProblem("gap", whole[0].name, f"{message}; see holdfast archive repair")
        chain = [each for each in whole if (each.after or "") >= trimmed and each.last <= last]
        if not chain or origin.count(spot, chain[0].after, chain[-1].last) == sum(m.rows for m in chain):
            continue
        for manifest in chain:
            count = origin.count(spot, manifest.after, manifest.last)
            if count != manifest.rows:
                message = f"lists {manifest.rows} events, and the log has {count} in their place"
                yield ArchiveProblem("gap", manifest.name, message)


def begins_late(origin: Origin, first: Manifest) -> bool:
    """Whether the log has events from before the first manifest of a chain: its beginning is lost, or was
    archived elsewhere."""
    known = first.spot.partition < len(origin.connection.backends)
    return first.after is not None and known and origin.count(first.spot, None, first.after) > 0


def _unlisted(
    store: ObjectStore, catalog: Catalog, there: list[str], ends: Mapping[ChannelPartition, str]
) -> Iterator[ArchiveProblem]:
    """Objects that are in no manifest. Only one whose every event is in another object can be removed."""
    known = {each.object for each in catalog.objects} | superseded(store)
    for name in sorted(set(there) - known):
        named, lines = parse_object(name), read_object(store, name)
        if lines is not None and _is_elsewhere(store, catalog, lines):
            message = (
                f"in no manifest; all its {len(lines.events)} events are in others, and it can be removed"
            )
            yield ArchiveProblem("orphaned", name, message)
        elif named is not None and named.last > ends.get(named.spot, ""):
            yield ArchiveProblem(
                "uncommitted", name, "beyond the last manifest: an archiver is, or was, at work"
            )
        elif lines is None:
            yield ArchiveProblem(
                "orphaned", name, "in no manifest, and not readable: what it holds is not known"
            )
        else:
            message = f"in no manifest, and {len(lines.events)} events may be nowhere else: do not remove it"
            yield ArchiveProblem("unlisted", name, f"{message}; see holdfast archive repair")


def _is_elsewhere(store: ObjectStore, catalog: Catalog, lines: ObjectContent) -> bool:
    """Whether every event of an object is in objects that are committed and whole."""
    missing, own = set(lines.events), lines.written
    for each in catalog.objects:
        if each.spot == own.spot and each.first <= own.last and own.first <= each.last:
            found = read_object(store, each.object)
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


def check(store: ObjectStore, written: Written) -> ArchiveProblem | None:
    """Read one object back."""
    try:
        data = store.get(written.object)
    except NotFound:
        return ArchiveProblem("missing", written.object, f"{written.rows} rows of {written.channel} are gone")
    if len(data) != written.bytes or hashlib.sha256(data).hexdigest() != written.sha256:
        return ArchiveProblem(
            "damaged",
            written.object,
            f"{len(data)} bytes with another length or checksum than its manifest has",
        )
    try:
        lines = decompressed(written.object, data).splitlines()
        ends = [orjson.loads(line)["position"] for line in (lines[0], lines[-1])]
    except (Damaged, ValueError, LookupError, TypeError):
        return ArchiveProblem("damaged", written.object, "has its checksum, and is no gzip of our lines")
    if (len(lines), *ends) != (written.rows, written.first, written.last):
        return ArchiveProblem(
            "damaged", written.object, "has its checksum, and other rows than its manifest says"
        )
    return None
