"""Rows: an object's lines as columns again, for whoever reads the archive in Spark."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from holdfast.pipeline.archive.catalog import frame
from holdfast.pipeline.archive.manifest import Written
from holdfast.pipeline.archive.objects import text_of
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.stores.address import cloud_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = pa.schema(
    {
        "object": pa.string(),
        "line": pa.int32(),
        "partition": pa.int32(),
        "message_id": pa.string(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "channel": pa.string(),
        "position": pa.string(),
        "source": pa.string(),
        "type": pa.string(),
        "key": pa.string(),
        "headers": pa.map_(pa.string(), pa.string()),
        "data": pa.string(),
        "data_base64": pa.string(),
    }
)
COLUMNS = (
    "object string, line int, partition int, message_id string, timestamp timestamp, channel string, "
    "position string, source string, type string, key string, headers map<string,string>, data string, "
    "data_base64 string"
)
_PLAIN = ("message_id", "channel", "position", "source", "type", "key")
# Whichever comes first ends the headers: inside of strings quotes are escaped, and headers hold strings only.
_DATA, _EXACT, _AFTER = b'},"data":', b'},"data_base64":"', b'","data":'


def load(spark: SparkSession, destination: str, objects: Iterable[Written]) -> DataFrame:
    """The events of these objects, in the columns that `COLUMNS` names."""
    return frame(spark, objects).mapInArrow(ReadObjects(destination, cloud_environment()), COLUMNS)


def to_rows(name: str, partition: int, text: bytes) -> pa.RecordBatch:
    """The lines of one object."""
    lines = text.splitlines()
    documents = [orjson.loads(line) for line in lines]
    columns: dict[str, Any] = {each: [row[each] for row in documents] for each in _PLAIN}
    columns["object"], columns["partition"] = [name] * len(lines), [partition] * len(lines)
    columns["line"] = range(1, len(lines) + 1)
    columns["timestamp"] = [datetime.fromisoformat(row["timestamp"]) for row in documents]
    columns["headers"] = [list(row["headers"].items()) for row in documents]
    columns["data"] = [
        _json(line) if "data" in row else None for line, row in zip(lines, documents, strict=True)
    ]
    columns["data_base64"] = [row.get("data_base64") for row in documents]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )


def exact_data(data: str | None, data_base64: str | None) -> bytes:
    """An event's data, byte for byte as it was published."""
    if data_base64 is not None:
        return base64.b64decode(data_base64)
    assert data is not None, "a line has one of them"  # noqa: S101 - our own lines
    return data.encode()


def _json(line: bytes) -> str:
    """The member `data` as it is written: numbers and blanks as the publisher wrote them."""
    data, exact = line.find(_DATA), line.find(_EXACT)
    if exact >= 0 and (data < 0 or exact < data):
        at = line.index(_AFTER, exact + len(_EXACT)) + len(_AFTER)
    else:
        at = data + len(_DATA)
    return line[at:-1].decode()


@dataclass(frozen=True)
class ReadObjects:
    """For `mapInArrow`: names of objects in, their rows out."""

    destination: str
    environment: Mapping[str, str]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the objects of a task, one after the other."""
        store = open_store(self.destination, self.environment)
        for batch in batches:
            for row in batch.to_pylist():
                written = Written(**row)
                yield to_rows(written.object, written.partition, text_of(store, written))
