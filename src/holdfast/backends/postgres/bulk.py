"""Bulk publish: COPY in its binary format, built while the server is busy with the jobs.

Rows are assembled by hand: for this format one join per chunk is several times faster than adapting every
value, and the batch is what makes publishing fast.
"""

from __future__ import annotations

import asyncio
import hashlib
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson

from holdfast import failpoints
from holdfast.backends.postgres.arrays import TextArray
from holdfast.backends.postgres.pool import Connection
from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.event import Event

_CHUNK = 2000
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
    parameters = {"channel": channel, "count": len(events), "at": at, "priority": priority}
    parameters["keys"] = TextArray(keys) if any(key is not None for key in keys) else None
    async with connection.transaction():
        cursor = connection.cursor(binary=True)
        # The rows are built while the server makes the jobs.
        (key_rows, log_rows), _ = await asyncio.gather(
            asyncio.to_thread(_rows, events, at, priority),
            cursor.execute(QUERIES["begin_bulk"], parameters),
        )
        row: Any = await cursor.fetchone()
        channel_id, epoch, tx, now, seqs = row
        same = struct.pack(">iiiiiqiq", 4, channel_id, 4, epoch, 8, tx, 8, now - _EPOCH_MICROSECONDS)
        await _copy(connection, "copy_keys", struct.pack(">h", 8) + same, seqs, key_rows)
        await _copy(connection, "copy_log", struct.pack(">h", 14) + same, seqs, log_rows)
        failpoints.hit("publish.before_commit")
    return epoch, tx, seqs


async def _copy(
    connection: Connection, query: str, prefix: bytes, seqs: Sequence[int], rows: Sequence[bytes]
) -> None:
    """Send rows: the columns that all share, then the sequence number, then the event's own."""
    async with connection.cursor().copy(QUERIES[query]) as copy:
        await copy.write(_HEADER)
        for start in range(0, len(rows), _CHUNK):
            chunk = zip(seqs[start : start + _CHUNK], rows[start : start + _CHUNK], strict=True)
            await copy.write(
                b"".join([part for seq, row in chunk for part in (prefix, _bigint(8, seq), row)])
            )
        await copy.write(_TRAILER)


def _rows(events: Sequence[Event], at: datetime | None, priority: int) -> tuple[list[bytes], list[bytes]]:
    """What each event adds to the keys and to the log; the rest is known once the server has begun."""
    suffix = _time(at) + struct.pack(">ih", 2, priority)
    return [_key_row(event) for event in events], [_log_row(event, suffix) for event in events]


def _key_row(event: Event) -> bytes:
    return b"".join((_text(event.id), _text(event.source), _bytes(_content_hash(event))))


def _log_row(event: Event, suffix: bytes) -> bytes:
    data, name, source, kind, key, time, headers = event
    return b"".join(
        (
            _text(name),
            _text(source),
            _text(kind),
            _NULL if key is None else _text(key),
            _time(time),
            # A binary jsonb is its version, 1, and the text.
            _bytes(b"\x01" + orjson.dumps(dict(headers))) if headers else _NULL,
            _length(len(data)),
            data,
            suffix,
        )
    )


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
    key = _NULL if event.key is None else _text(event.key)
    return hashlib.sha256(_text(event.type) + key + event.data).digest()[:16]
