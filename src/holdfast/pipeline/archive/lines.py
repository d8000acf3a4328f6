"""JSON lines: events as the lines of an object, and back.

One line has `message_id, timestamp, channel, position, source, type, key, headers` and `data`, or
`data_base64` where the data is not JSON on one line. Lines are written a column at a time: Arrow joins the
columns, and only the check for JSON and text that needs escapes are done row by row.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.archive.objects import Written, text_of
from holdfast.pipeline.arrow import SCHEMA as LOG_SCHEMA
from holdfast.pipeline.stores import ObjectStore, cloud_environment, open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20
_STAMP = len("2026-02-14T23:59:00.000000")
_DEEPEST = 1_000
_NEW_LINES = bytes.maketrans(b"\r\n", b"  ")


def encode_lines(batch: pa.RecordBatch) -> pa.BinaryArray:
    """One line for each row, with its line feed."""
    parts: list[Any] = [
        b'{"message_id":"',
        _escaped(batch["id"]),
        b'","timestamp":"',
        _stamps(batch["time"]),
        b'Z","channel":"',
        _escaped(batch["channel"]),
        b'","position":"',
        _escaped(batch["position"]),
        b'","source":"',
        _escaped(batch["source"]),
        b'","type":"',
        _escaped(batch["type"]),
        b'","key":',
        _nullable(batch["key"]),
        b',"headers":',
        _headers(batch["headers"]),
        *_data(batch["data"]),
        b"}\n",
    ]
    return pc.binary_join_element_wise(*(_binary(part) for part in parts), pa.scalar(b"", pa.binary()))


def _binary(part: Any) -> Any:
    if isinstance(part, bytes):
        return pa.scalar(part, pa.binary())
    return part if part.type == pa.binary() else part.cast(pa.binary())


def content(column: pa.Array) -> memoryview:
    """The bytes of all values of a text or binary column, one after the other."""
    offsets = np.frombuffer(column.buffers()[1], np.int32)
    data = column.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data)[offsets[column.offset] : offsets[column.offset + len(column)]]


def _escaped(column: pa.Array) -> pa.Array:
    """Text as it stands between the quotes of a JSON string. Usually that is the text itself."""
    text = np.frombuffer(content(column), np.uint8)
    if not ((text < _SPACE) | (text == _QUOTE) | (text == _BACKSLASH)).any():
        return column
    return _array(None if text is None else orjson.dumps(text)[1:-1] for text in column.to_pylist())


def _nullable(column: pa.Array) -> Any:
    if column.null_count == len(column):
        return b"null"
    quote = pa.scalar(b'"', pa.binary())
    quoted = pc.binary_join_element_wise(
        quote, _binary(_escaped(column)), quote, pa.scalar(b"", pa.binary()), null_handling="emit_null"
    )
    return quoted.fill_null(b"null")


def _stamps(column: pa.Array) -> pa.Array:
    """UTC, to the microsecond. All have one width, so that the T between date and time can be set at once."""
    text = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
    stamps = np.frombuffer(content(text), np.uint8).reshape(-1, _STAMP).copy()
    stamps[:, 10] = ord("T")
    return pa.Array.from_buffers(pa.binary(_STAMP), len(text), [None, pa.py_buffer(stamps)]).cast(pa.binary())


def _headers(column: pa.MapArray) -> Any:
    if not len(column.keys):
        return b"{}"
    return _array(orjson.dumps(dict(pairs)) if pairs else b"{}" for pairs in column.to_pylist())


def _data(column: pa.BinaryArray) -> tuple[Any, ...]:
    """The last members. Data that is JSON stays as it is: whether it is JSON is all that is asked."""
    values: list[bytes] = column.to_pylist()
    whole = bytes(content(column))
    if b"\n" not in whole and b"\r" not in whole:
        try:
            for value in values:
                _check_json(value)
            return b',"data":', column
        except orjson.JSONDecodeError:
            pass
    return b",", _array(map(_members, values))


def _members(value: bytes) -> bytes:
    """JSON over several lines is there twice: on one line, to be queried, and byte for byte.

    Line ends in JSON are white space: within strings they are escaped.
    """
    exact = b'"data_base64":"' + base64.b64encode(value) + b'"'
    try:
        _check_json(value)
    except orjson.JSONDecodeError:
        return exact
    one_line = b'"data":' + value.translate(_NEW_LINES)
    return one_line if one_line.endswith(value) else exact + b"," + one_line


def _check_json(value: bytes) -> None:
    """Raise unless it is JSON, also inside the line: that is one level more, and readers have a limit."""
    orjson.loads(value)
    if value.count(b"[") + value.count(b"{") >= _DEEPEST:
        orjson.loads(b"[" + value + b"]")


def _array(values: Iterable[bytes | None]) -> pa.BinaryArray:
    return pa.array(values, pa.binary())


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
_TASKS = 200
_OBJECTS = (
    "object string, channel string, partition int, first string, last string, rows long, bytes long, "
    "sha256 string"
)
_PLAIN = ("message_id", "channel", "position", "source", "type", "key")
# Whichever comes first ends the headers: inside of strings quotes are escaped, and headers hold strings only.
_DATA, _EXACT, _AFTER = b'},"data":', b'},"data_base64":"', b'","data":'


def object_frame(spark: SparkSession, objects: Iterable[Written]) -> DataFrame:
    """Descriptions of objects as rows, spread over tasks."""
    rows = list(objects)
    return spark.createDataFrame(rows, _OBJECTS).repartition(max(1, min(len(rows), _TASKS)))


def load(spark: SparkSession, destination: str, objects: Iterable[Written]) -> DataFrame:
    """The events of these objects, in the columns that `COLUMNS` names."""
    return object_frame(spark, objects).mapInArrow(ReadObjects(destination, cloud_environment()), COLUMNS)


def decode_lines(name: str, partition: int, text: bytes) -> pa.RecordBatch:
    """The lines of one object as rows."""
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


def log_rows(store: ObjectStore, objects: Iterable[Written]) -> pa.Table:
    """The events of some objects as the log had them, by position: the objects of one commit are by day."""
    parts = [decode_lines(each.object, each.partition, text_of(store, each)) for each in objects]
    rows = pa.Table.from_batches(parts).sort_by("position")
    exact = map(exact_data, rows["data"].to_pylist(), rows["data_base64"].to_pylist())
    columns = {"id": rows["message_id"], "time": rows["timestamp"], "data": pa.array(exact, pa.binary())}
    named = {name: columns[name] if name in columns else rows[name] for name in LOG_SCHEMA.names}
    return pa.table(named).cast(LOG_SCHEMA)


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
                yield decode_lines(written.object, written.partition, text_of(store, written))
