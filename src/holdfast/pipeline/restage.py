"""Restage: ranges of the archive, staged again as segments of the WAL. It runs in Spark's tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.archive.lines import log_rows
from holdfast.pipeline.archive.manifests import Manifest
from holdfast.pipeline.archive.objects import Written
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import BatchPart, Segment
from holdfast.pipeline.wal.log import machine_time

ROWS = 100_000
"""Events that become one batch, about."""


class ArchiveRange(NamedTuple):
    """What becomes one batch: neighbouring manifests of one channel on one store."""

    part: BatchPart
    objects: tuple[Written, ...]
    without: frozenset[str] = frozenset()
    """Positions of records that have failed: they are accounted for."""


def archive_ranges(manifests: Iterable[Manifest], rows: int = ROWS) -> Iterator[ArchiveRange]:
    """Neighbouring manifests of each chain, together. Always the same for the same archive, as far as it went
    then: a range that is full does not grow."""
    for _, chain in groupby(manifests, key=lambda each: each.spot):
        taken: list[Manifest] = []
        for manifest in chain:
            taken.append(manifest)
            if sum(each.rows for each in taken) >= rows:
                yield _archive_range(taken)
                taken = []
        if taken:
            yield _archive_range(taken)


def _archive_range(manifests: list[Manifest]) -> ArchiveRange:
    spot = manifests[0].spot
    ends = manifests[0].first, manifests[-1].last
    objects = tuple(each for manifest in manifests for each in manifest.objects)
    return ArchiveRange(
        BatchPart(*spot, *ends, manifests[0].after, sum(each.rows for each in manifests)), objects
    )


@dataclass(frozen=True)
class Restage:
    """For `map`: a range in, its segments out."""

    archive: str
    wal: str
    environment: Mapping[str, str]
    rules: ValidationRules

    def __call__(self, extent: ArchiveRange) -> tuple[BatchPart, tuple[Segment, ...]]:
        """Read, sort, stage; returns what was staged of the range."""
        rows = log_rows(open_store(self.archive, self.environment), extent.objects)
        if extent.without:
            rows = rows.filter(pc.invert(pc.is_in(rows["position"], pa.array(sorted(extent.without)))))
        wal = open_store(self.wal, self.environment)
        staged = stage(wal, rows.to_batches(), self.rules, {}, machine_time())
        segments = tuple(each.segment for each in staged)
        return extent.part._replace(rows=rows.num_rows), segments
