"""What runs in Spark's tasks of a reconciliation: records of each side, under one identity.

A record is one place in the log. Its event is the transaction id, the same wherever it is computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import orjson
import pyarrow as pa

from holdfast.model.errors import Damaged
from holdfast.pipeline.archive.manifest import Written
from holdfast.pipeline.archive.objects import text_of
from holdfast.pipeline.failed.service import failures
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.wal.identity import transaction_ids

COLUMNS = "partition int, position string, transaction_id string, source string, id string"
SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "position": pa.string(),
        "transaction_id": pa.string(),
        "source": pa.string(),
        "id": pa.string(),
    }
)
UNREADABLE = ""
"""Stands for the transaction id of an object that cannot be read; its id is the object's name."""


@dataclass(frozen=True)
class Identify:
    """For `mapInArrow`: rows of one channel of the log in, records out."""

    channel: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the transaction ids."""
        for batch in batches:
            sources, ids = batch["source"].to_pylist(), batch["id"].to_pylist()
            names, _ = transaction_ids(self.channel, sources, ids)
            columns = [batch["partition"], batch["position"], pa.array(names, pa.string())]
            yield pa.RecordBatch.from_arrays([*columns, batch["source"], batch["id"]], schema=SCHEMA)


@dataclass(frozen=True)
class ReadArchive:
    """For `mapInArrow`: descriptions of objects in, records out; an unreadable one is a record itself."""

    destination: str
    environment: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the objects of a task."""
        store = open_store(self.destination, self.environment)
        for batch in batches:
            for row in batch.select(list(Written._fields)).to_pylist():
                yield pa.RecordBatch.from_pylist(list(_archived(store, Written(**row))), SCHEMA)


def _archived(store: ObjectStore, written: Written) -> Iterator[dict[str, Any]]:
    try:
        text = text_of(store, written)
    except Damaged:
        yield _record(written.partition, written.last, UNREADABLE, None, written.object)
        return
    lines = [orjson.loads(line) for line in text.splitlines()]
    sources, ids = [line["source"] for line in lines], [line["message_id"] for line in lines]
    names, _ = transaction_ids(written.channel, sources, ids)
    for line, name in zip(lines, names, strict=True):
        yield _record(written.partition, line["position"], name, line["source"], line["message_id"])


@dataclass(frozen=True)
class ReadFailed:
    """For `mapInArrow`: names of batches of the WAL in, records of what failed in them out."""

    path: str
    environment: Mapping[str, str]
    day: date | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the failures of a task's batches."""
        wal = Wal(open_store(self.path, self.environment), WalSettings(path=self.path))
        for batch in batches:
            for name in batch["name"].to_pylist():
                found = [
                    _record(each.partition, each.position, each.transaction_id, each.source, each.id)
                    for each in failures(wal, name)
                    if self.day in (None, datetime.fromisoformat(each.time).astimezone(UTC).date())
                ]
                yield pa.RecordBatch.from_pylist(found, SCHEMA)


def _record(
    partition: int, position: str, transaction: str, source: str | None, event: str
) -> dict[str, Any]:
    return {
        "partition": partition,
        "position": position,
        "transaction_id": transaction,
        "source": source,
        "id": event,
    }
