"""Bulk publish: COPY in its binary format, built chunk by chunk while the server takes the last one.

Rows are assembled by hand: for this format one join per chunk is several times faster than adapting every
value, and the batch is what makes publishing fast.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from holdfast.backends.postgres.arrays import TextArray
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Connection
from holdfast.model.event import Event

_CHUNK = 1000
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_length = struct.Struct(">i").pack
_bigint = struct.Struct(">iq").pack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_EPOCH_MICROSECONDS = int(_EPOCH.timestamp()) * 1_000_000

Answer = tuple[int, int, list[int]]


async def publish(
    connection: Connection, channel: str, events: Sequence[Event], at: datetime | None, priority: int
) -> Answer:
    """Append a batch of fresh events in one transaction; answers (epoch, tx, seqs).

    Raises psycopg's UniqueViolation, with nothing applied, where some event was published before.
    """
    keys = [event.key for event in events]
    async with connection.transaction():
        cursor = connection.cursor(binary=True)
        parameters = {"channel": channel, "count": len(events), "at": at, "priority": priority}
        await cursor.execute(
            QUERIES["begin_bulk"], parameters | {"keys": TextArray(keys) if any(keys) else None}
        )
        row: Any = await cursor.fetchone()
        channel_id, epoch, tx, now, seqs = row
        now -= _EPOCH_MICROSECONDS
        same = struct.pack(">iiiiiqiq", 4, channel_id, 4, epoch, 8, tx, 8, now)
        await _copy(connection, "copy_keys", events, seqs, _key_rows(same))
        await _copy(connection, "copy_log", events, seqs, _log_rows(same, now, at, priority))
    return epoch, tx, seqs


Rows = Callable[[Sequence[Event], Sequence[int]], Iterator[bytes]]


async def _copy(
    connection: Connection, query: str, events: Sequence[Event], seqs: Sequence[int], rows: Rows
) -> None:
    async with connection.cursor().copy(QUERIES[query]) as copy:
        await copy.write(_HEADER)
        for start in range(0, len(events), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            await copy.write(b"".join(rows(events[chunk], seqs[chunk])))
        await copy.write(_TRAILER)


def _key_rows(same: bytes) -> Rows:
    prefix = struct.pack(">h", 8) + same

    def rows(events: Sequence[Event], seqs: Sequence[int]) -> Iterator[bytes]:
        for event, seq in zip(events, seqs, strict=True):
            yield prefix
            yield _bigint(8, seq)
            yield _text(event.id)
            yield _text(event.source)
            yield _bytes(_content_hash(event))

    return rows


def _log_rows(same: bytes, now: int, at: datetime | None, priority: int) -> Rows:
    prefix = struct.pack(">h", 14) + same
    suffix = _time(at) + struct.pack(">ih", 2, priority)
    default_time = _bigint(8, now)

    def rows(events: Sequence[Event], seqs: Sequence[int]) -> Iterator[bytes]:
        for event, seq in zip(events, seqs, strict=True):
            yield prefix
            yield _bigint(8, seq)
            yield _text(event.id)
            yield _text(event.source)
            yield _text(event.type)
            yield _NULL if event.key is None else _text(event.key)
            yield default_time if event.time is None else _time(event.time)
            # A binary jsonb is its version, 1, and the text.
            yield _bytes(b"\x01" + orjson.dumps(dict(event.headers))) if event.headers else _NULL
            yield _bytes(event.data)
            yield suffix

    return rows


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _bytes(value: bytes) -> bytes:
    return _length(len(value)) + value


def _time(value: datetime | None) -> bytes:
    if value is None:
        return _NULL
    since = value - _EPOCH
    return _bigint(8, (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds)


def _content_hash(event: Event) -> bytes:
    """The same as holdfast.content_hash() in SQL."""
    kind = event.type.encode()
    key = _NULL if event.key is None else _text(event.key)
    return hashlib.sha256(_bytes(kind) + key + event.data).digest()[:16]
