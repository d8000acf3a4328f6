"""Records: what each input of a reconciliation holds, under one identity. It runs in Spark's tasks.

A record is one place in the log. Its event is the transaction id and its content the digest, both the same
wherever they are computed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.model.errors import Damaged
from holdfast.pipeline.archive.lines import decode_lines, exact_data
from holdfast.pipeline.archive.objects import Written, text_of
from holdfast.pipeline.arrow import headers_text
from holdfast.pipeline.failed.failures import without_rows
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.wal.batch import transaction_ids

COLUMNS = "partition int, position string, transaction_id string, source string, id string, digest long"
SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "position": pa.string(),
        "transaction_id": pa.string(),
        "source": pa.string(),
        "id": pa.string(),
        "digest": pa.int64(),
    }
)
IDENTIFIED = ("partition", "position", "source", "id", "type", "key", "time", "headers", "content")
"""What `Identify` needs: columns of the source, and the MD5 of the data as `content`."""
UNREADABLE = ""
"""Stands for the transaction id of an object that cannot be read; its id is the object's name."""


class Contents(NamedTuple):
    """What is compared of many events, column by column."""

    ids: Sequence[str]
    sources: Sequence[str]
    types: Sequence[str]
    keys: Sequence[str | None]
    times: Sequence[int]
    """Microseconds since 1970."""
    headers: Sequence[str]
    """JSON objects with their names in order."""
    hashes: Sequence[int]
    """The part of the transaction id that joins compare."""
    data: Sequence[str]
    """The MD5 of each event's data, in hexadecimal digits."""


def digests(contents: Contents) -> list[int]:
    """The content of each event as one number, in their order.

    `warehouse/duck.sql` computes it from a warehouse's columns; change both together. It finds damage, and
    changes by mistake or by hand: 63 bits of an MD5, which is fast in Python, in DuckDB and on the JVM.
    """
    return [_digest(*each) for each in zip(*contents, strict=True)]


def data_digests(data: Iterable[bytes]) -> list[str]:
    """The MD5 of each event's data."""
    return [hashlib.md5(each, usedforsecurity=False).hexdigest() for each in data]


def _digest(
    event: str, source: str, kind: str, key: str | None, time: int, headers: str, number: int, data: str
) -> int:
    """Each text has its length before it, so that no two contents run together into the same one."""
    keyed = "-" if key is None else f"{len(key)}:{key}"
    text = (
        f"{len(event)}:{event}{len(source)}:{source}{len(kind)}:{kind}{keyed}"
        f"{time};{len(headers)}:{headers}{number};{data}"
    )
    found = hashlib.md5(text.encode(), usedforsecurity=False).digest()
    return int.from_bytes(found[8:], "little") >> 1


@dataclass(frozen=True)
class Identify:
    """For `mapInArrow`: rows of one channel of the log in, records out."""

    channel: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Add the transaction ids and the digests."""
        for batch in batches:
            yield _records(self.channel, pa.Table.from_batches([batch]))


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
                yield _archived(store, Written(**row))


def _archived(store: ObjectStore, written: Written) -> pa.RecordBatch:
    try:
        text = text_of(store, written)
    except Damaged:
        record = _record(written.partition, written.last, UNREADABLE, None, written.object)
        return pa.RecordBatch.from_pylist([record], SCHEMA)
    rows = pa.Table.from_batches([decode_lines(written.object, written.partition, text)])
    data = map(exact_data, rows["data"].to_pylist(), rows["data_base64"].to_pylist())
    renamed = {"id": rows["message_id"], "time": rows["timestamp"], "content": pa.array(data_digests(data))}
    columns = {name: renamed[name] if name in renamed else rows[name] for name in IDENTIFIED}
    return _records(written.channel, pa.table(columns))


def _records(channel: str, rows: pa.Table) -> pa.RecordBatch:
    """Rows with the columns `IDENTIFIED` as records."""
    sources, ids = rows["source"].to_pylist(), rows["id"].to_pylist()
    names, hashes = transaction_ids([channel] * len(ids), sources, ids)
    contents = Contents(
        ids,
        sources,
        rows["type"].to_pylist(),
        rows["key"].to_pylist(),
        rows["time"].cast(pa.int64()).to_pylist(),
        headers_text(rows["headers"]).to_pylist(),
        hashes,
        rows["content"].to_pylist(),
    )
    found = {
        "transaction_id": pa.array(names, pa.string()),
        "digest": pa.array(digests(contents), pa.int64()),
    }
    columns = [found[name] if name in found else rows[name].combine_chunks() for name in SCHEMA.names]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@dataclass(frozen=True)
class ReadFailed:
    """For `mapInArrow`: names of batches of the WAL in, records of what failed in them out."""

    path: str
    environment: Mapping[str, str]
    channel: str
    day: date | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the failures of a task's batches."""
        wal = Wal(open_store(self.path, self.environment), WalSettings(path=self.path))
        for batch in batches:
            for name in batch["name"].to_pylist():
                found = [
                    _record(each.partition, each.position, each.transaction_id, each.source, each.id)
                    for each in without_rows(wal, name)
                    if each.channel == self.channel
                    and self.day in (None, datetime.fromisoformat(each.time).astimezone(UTC).date())
                ]
                yield pa.RecordBatch.from_pylist(found, SCHEMA)


def _record(
    partition: int, position: str, transaction: str, source: str | None, event: str
) -> dict[str, Any]:
    """Without a digest: nothing to compare, or sealed by a checksum."""
    return {
        "partition": partition,
        "position": position,
        "transaction_id": transaction,
        "source": source,
        "id": event,
        "digest": None,
    }
