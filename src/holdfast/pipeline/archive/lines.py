"""Lines: events as JSON lines, a column at a time.

One line has `message_id, timestamp, channel, position, source, type, key, headers` and `data`, or
`data_base64` where the data is not JSON on one line. Arrow joins the columns. Row by row goes only what must:
whether data is JSON, and text that needs escapes.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

_QUOTE, _BACKSLASH, _SPACE = 0x22, 0x5C, 0x20
_STAMP = len("2026-02-14T23:59:00.000000")
_DEEPEST = 1_000
_NEW_LINES = bytes.maketrans(b"\r\n", b"  ")


def lines(batch: pa.RecordBatch) -> pa.BinaryArray:
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
