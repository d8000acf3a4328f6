"""The digest of an event: its content as one number, the same wherever it is computed.

`warehouse/duck.sql` computes it from a warehouse's columns; change both together. It finds damage and changes
by mistake or by hand: 63 bits of an MD5, which is fast in Python, in DuckDB and on the JVM.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


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
    """One for each event, in their order."""
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
