"""Repair: a damaged batch of the WAL, staged anew from the log, as long as the log has it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.staging import read_range, stage
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.wal import Batch, BatchKey, Wal


def repair(wal: Wal, connection: Connection, rules: Rules, name: str) -> Batch:
    """quarantine → pending. Raises `DataLost` where the log was trimmed; the archive may have it."""
    key = BatchKey.parse(name)
    spot = Spot(key.partition, key.channel)
    known = _record(wal, key)
    rows = _from(key.first, read_range(connection, spot, known.after, key.last))
    staged = list(stage(wal.store, rows, rules, {}, wal.clock()))
    wal.repair(known, tuple(each.segment for each in staged))
    return wal.batch(name)


def _record(wal: Wal, key: BatchKey) -> Batch:
    """What the batch said of itself, or what its name and its predecessors say."""
    try:
        return wal.batch(key.name)
    except Damaged:
        before = [BatchKey.parse(name) for name in wal.journal.names("pending")]
        ends = [each.last for each in before if each[:2] == key[:2] and each.last < key.first]
        return Batch(key, max(ends, default=None), (), wal.clock())


def _from(first: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.filter(pc.greater_equal(batch["position"], first))
