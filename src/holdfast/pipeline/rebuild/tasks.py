"""What runs in Spark's tasks of a rebuild: objects of the archive, staged as segments of the WAL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.archive.manifest import Manifest, Written
from holdfast.pipeline.archive.objects import text_of
from holdfast.pipeline.archive.rows import exact_data, to_rows
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Part, Segment
from holdfast.pipeline.wal.log import machine_time

ROWS = 100_000
"""Events that become one batch, about."""


class Stretch(NamedTuple):
    """What becomes one batch: neighbouring manifests of one channel on one store."""

    part: Part
    objects: tuple[Written, ...]
    without: frozenset[str] = frozenset()
    """Positions of records that have failed: they are accounted for."""


def stretches(manifests: Iterable[Manifest], rows: int = ROWS) -> Iterator[Stretch]:
    """Manifests in the order of their chains, some together. Always the same for the same archive, as far as
    it went then: a stretch that is full does not grow."""
    for _, chain in groupby(manifests, key=lambda each: each.spot):
        taken: list[Manifest] = []
        for manifest in chain:
            taken.append(manifest)
            if sum(each.rows for each in taken) >= rows:
                yield _stretch(taken)
                taken = []
        if taken:
            yield _stretch(taken)


def _stretch(manifests: list[Manifest]) -> Stretch:
    spot = manifests[0].spot
    ends = manifests[0].first, manifests[-1].last
    objects = tuple(each for manifest in manifests for each in manifest.objects)
    return Stretch(Part(*spot, *ends, manifests[0].after, sum(each.rows for each in manifests)), objects)


@dataclass(frozen=True)
class Restage:
    """For `map`: a stretch in, its segments out."""

    archive: str
    wal: str
    environment: Mapping[str, str]
    rules: Rules

    def __call__(self, stretch: Stretch) -> tuple[Part, tuple[Segment, ...]]:
        """Read, sort, stage; returns what was staged of the stretch."""
        rows = source_rows(open_store(self.archive, self.environment), stretch)
        wal = open_store(self.wal, self.environment)
        staged = stage(wal, rows.to_batches(), self.rules, {}, machine_time())
        segments = tuple(each.segment for each in staged)
        return stretch.part._replace(rows=rows.num_rows), segments


def source_rows(store: ObjectStore, stretch: Stretch) -> pa.Table:
    """A stretch as the log had it, without what has failed. The objects of one commit are by day."""
    parts = [to_rows(each.object, each.partition, text_of(store, each)) for each in stretch.objects]
    rows = pa.Table.from_batches(parts).sort_by("position")
    if stretch.without:
        rows = rows.filter(pc.invert(pc.is_in(rows["position"], pa.array(sorted(stretch.without)))))
    exact = map(exact_data, rows["data"].to_pylist(), rows["data_base64"].to_pylist())
    columns = {"id": rows["message_id"], "time": rows["timestamp"], "data": pa.array(exact, pa.binary())}
    return pa.table({name: columns[name] if name in columns else rows[name] for name in SCHEMA.names}).cast(
        SCHEMA
    )
