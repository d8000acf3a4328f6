"""Arrays in PostgreSQL's binary format, built in one pass.

psycopg dumps a list element by element through its adapters; for text, bytes and numbers the format is so
simple that one join is several times faster, and batches are made of such lists.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import psycopg
from psycopg.abc import AdaptContext
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types import TypeInfo

_HEADER = struct.Struct(">iiIii")
_LENGTH = struct.Struct(">i").pack
_NULL = _LENGTH(-1)
_NUMBER = struct.Struct(">iq").pack


class TextArray(list[str | None]):
    """A text[] parameter."""


class BytesArray(list[bytes]):
    """A bytea[] parameter."""


class NumberArray(list[int]):
    """A bigint[] parameter."""


def _array(element: int, items: Sequence[bytes | None]) -> bytes:
    parts = [_HEADER.pack(1, 1, element, len(items), 1)]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts.append(_LENGTH(len(item)))
            parts.append(item)
    return b"".join(parts)


def _info(name: str) -> TypeInfo:
    info = psycopg.postgres.types.get(name)
    assert info is not None  # noqa: S101 - built-in types are always known
    return info


class _TextDumper(Dumper):
    format = Format.BINARY
    oid = _info("text").array_oid
    _element = _info("text").oid

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        # A connection of the caller's may have another encoding than ours.
        self._encoding = "utf-8" if self.connection is None else self.connection.info.encoding

    def dump(self, obj: TextArray) -> bytes:
        encoding = self._encoding
        return _array(self._element, [None if item is None else item.encode(encoding) for item in obj])


class _BytesDumper(Dumper):
    format = Format.BINARY
    oid = _info("bytea").array_oid
    _element = _info("bytea").oid

    def dump(self, obj: BytesArray) -> bytes:
        return _array(self._element, obj)


class _NumberDumper(Dumper):
    format = Format.BINARY
    oid = _info("int8").array_oid
    _element = _info("int8").oid

    def dump(self, obj: NumberArray) -> bytes:
        header = _HEADER.pack(1, 0, self._element, len(obj), 1)
        return header + b"".join([_NUMBER(8, item) for item in obj])


psycopg.adapters.register_dumper(TextArray, _TextDumper)
psycopg.adapters.register_dumper(NumberArray, _NumberDumper)
psycopg.adapters.register_dumper(BytesArray, _BytesDumper)
