"""Verify: every object against its manifest, every manifest against its chain, and what nobody lists."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import orjson
import pyarrow as pa

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.archive import naming
from holdfast.pipeline.archive.catalog import Catalog, frame, read_catalog
from holdfast.pipeline.archive.manifest import Written
from holdfast.pipeline.archive.objects import unpacked
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.stores.address import cloud_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["missing", "damaged", "orphaned", "gap", "uncommitted"]
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

    @property
    def sound(self) -> bool:
        """Uncommitted objects are an archiver's work in progress; everything else is a fault."""
        return all(problem.kind == "uncommitted" for problem in self.problems)


def verify(spark: SparkSession, destination: str) -> Report:
    """Read everything back. A running archiver is not disturbed."""
    store = open_store(destination)
    there = [entry.name for entry in store.list("archive")]  # first: what is committed meanwhile is listed
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
    problems += _unlisted(catalog, there)
    return Report(len(catalog.manifests), len(objects), sum(each.rows for each in objects), problems)


def _unlisted(catalog: Catalog, there: list[str]) -> Iterator[Problem]:
    listed = {each.object for each in catalog.objects}
    ends: dict[Spot, str] = {}
    for manifest in catalog.manifests:
        ends[manifest.spot] = max(manifest.last, ends.get(manifest.spot, ""))
    for name in sorted(set(there) - listed):
        batch = naming.parse_object(name)
        if batch is not None and batch.last > ends.get(Spot(batch.partition, batch.channel), ""):
            yield Problem("uncommitted", name, "beyond the last manifest: an archiver is, or was, at work")
        else:
            yield Problem(
                "orphaned", name, "in no manifest; what it holds is elsewhere, and it can be removed"
            )


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
