"""Bulk publish: COPY in its binary format, the next rows built while the server is busy with those before.

Rows are assembled by hand and by column: for this format one join per row is several times faster than
adapting every value, and the batch is what makes publishing fast.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from itertools import islice, repeat
from typing import Any, NamedTuple

import orjson
from psycopg import AsyncCopy

from holdfast import failpoints
from holdfast.backends.postgres.pool import Connection
from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.event import EventColumns, Receipt, receipts

_CHUNK = 500
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = struct.pack(">h", -1)
_NULL = struct.pack(">i", -1)
_length = struct.Struct(">i").pack
_bigint = struct.Struct(">iq").pack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class _Begun(NamedTuple):
    """What the server says when a publish begins: the place and time of its events."""

    channel_id: int
    epoch: int
    now: datetime
    first: int


async def publish(
    connection: Connection, channel: str, batch: EventColumns, at: datetime | None, priority: int
) -> list[Receipt]:
    """Append a batch of fresh events in one transaction.

    Raises psycopg's UniqueViolation, with nothing applied, where some event was published before.
    """
    async with connection.transaction():
        cursor = connection.cursor(binary=True)
        await cursor.execute(QUERIES["begin_bulk"], {"channel": channel, "count": len(batch)})
        row: Any = await cursor.fetchone()
        begun = _Begun(*row)
        numbers = range(begun.first, begun.first + len(batch))
        rows = _rows(begun, numbers, batch, _time(at) + struct.pack(">ih", 2, priority))
        for table in ("keys", "log"):
            async with _copying(connection, table) as copy:
                # They are let go here as well: there are many of them, and the server is busy.
                await _write(copy, rows.pop(table))
                if table == "keys":
                    made = receipts(batch.ids, f"{begun.epoch:04x}", numbers)
        failpoints.hit("publish.before_commit")
    return made


@asynccontextmanager
async def _copying(connection: Connection, table: str) -> AsyncIterator[AsyncCopy]:
    async with connection.cursor().copy(QUERIES[f"copy_{table}"]) as copy:
        await copy.write(_HEADER)
        yield copy
        await copy.write(_TRAILER)


async def _write(copy: AsyncCopy, rows: Iterator[bytes]) -> None:
    while chunk := b"".join(islice(rows, _CHUNK)):
        await copy.write(chunk)


def _joined(*columns: Iterable[bytes]) -> Iterator[bytes]:
    """As many rows as the shortest column has."""
    return map(b"".join, zip(*columns, strict=False))


def _rows(begun: _Begun, numbers: range, batch: EventColumns, delivery: bytes) -> dict[str, Iterator[bytes]]:
    """The rows of keys and log, their columns in the order that the COPY names."""
    data, ids, sources, types, keys, times, headers = batch.columns
    names = list(map(str.encode, ids))
    identities = [
        list(_bigints(numbers)),
        list(map(_length, map(len, names))),
        names,
        list(map(_label, sources)),
    ]
    natures = list(map(_nature, types, keys))
    # The same as holdfast.content_hash() in SQL.
    hashes = [sha256(nature + datum).digest()[:16] for nature, datum in zip(natures, data, strict=True)]
    contents = [natures, _occasions(times, headers), map(_length, map(len, data)), data]
    known = [*identities, hashes]
    if names != sorted(names):
        # In one order, as in holdfast.publish_many(): publishers that share ids must not wait in a circle.
        order = sorted(range(len(names)), key=names.__getitem__)
        known = [[column[place] for place in order] for column in known]
    return {
        "keys": _joined(repeat(_prefix(7, begun)), *known[:-1], repeat(_length(16)), known[-1]),
        "log": _joined(repeat(_prefix(13, begun) + delivery), *identities, *contents),
    }


def _prefix(columns: int, begun: _Begun) -> bytes:
    """How each row begins: the number of its columns, and those that all rows share."""
    same = struct.pack(">hiiii", columns, 4, begun.channel_id, 4, begun.epoch)
    return same + _time(begun.now)


def _bigints(numbers: Iterable[int]) -> Iterator[bytes]:
    return map(_bigint, repeat(8), numbers)


def _occasions(times: Sequence[datetime | None], headers: Sequence[Mapping[str, str]]) -> Iterable[bytes]:
    """Times and headers, which most events do not have."""
    if not any(times) and not any(headers):
        return repeat(_NULL + _NULL)
    return [_time(time) + _headers(named) for time, named in zip(times, headers, strict=True)]


def _headers(headers: Mapping[str, str]) -> bytes:
    """A binary jsonb is its version, 1, and the text."""
    return _bytes(b"\x01" + orjson.dumps(dict(headers))) if headers else _NULL


@lru_cache(1000)
def _nature(kind: str, key: str | None) -> bytes:
    """Type and key of an event: with the data they are its content."""
    return _label(kind) + _label(key)


@lru_cache(1000)
def _label(value: str | None) -> bytes:
    """Text that many events of a batch have in common."""
    return _NULL if value is None else _bytes(value.encode())


def _bytes(value: bytes) -> bytes:
    return _length(len(value)) + value


def _time(value: datetime | None) -> bytes:
    return _NULL if value is None else _bigint(8, _microseconds(value))


def _microseconds(value: datetime) -> int:
    """Since 2000, as the server counts."""
    since = value - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
