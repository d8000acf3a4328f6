"""Columns: stream entries as pages by column.

A page of nothing but usual entries is turned over as a whole, which is faster than an object for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.backends.redis.codec import decode, exact_micros, is_time
from holdfast.backends.redis.epochs import Mark, epoch_of
from holdfast.model.log import Page

Row = tuple[bytes, list[bytes]]

# An event of ours with or without a key, and with nothing else that not every event has.
_USUAL = (b"id", b"source", b"type", b"published", b"data", b"key")
_KEYED, _PLAIN = 2 * len(_USUAL), 2 * len(_USUAL) - 2
_NO_KEY = (b"key", None)
_NO_HEADERS: Mapping[str, str] = {}


def page(marks: Sequence[Mark], rows: Sequence[Row]) -> Page:
    """Entries of one log, in order."""
    return _turned(marks, rows) or _decoded(marks, rows)


def _turned(marks: Sequence[Mark], rows: Sequence[Row]) -> Page | None:
    """The page, if all of its entries are usual."""
    if not {_KEYED, _PLAIN}.issuperset([len(flat) for _, flat in rows]):
        return None
    columns: list[tuple[Any, ...]] = list(
        zip(*[flat if len(flat) == _KEYED else (*flat, *_NO_KEY) for _, flat in rows], strict=True)
    )
    names, values = columns[::2], columns[1::2]
    if any(set(given) != {name} for given, name in zip(names, _USUAL, strict=True)):
        return None
    ids, sources, types, published, data, keys = values
    if not all(map(is_time, published)):
        return None
    try:
        return Page(
            _positions(marks, rows),
            _texts(ids),
            _texts(sources),
            _texts(types),
            [None if key is None else key.decode() for key in keys],
            list(map(int, published)),
            [_NO_HEADERS] * len(rows),
            list(data),
        )
    except UnicodeDecodeError:  # a foreign client's bytes
        return None


def _texts(values: Sequence[bytes]) -> list[str]:
    return list(map(bytes.decode, values))


def _decoded(marks: Sequence[Mark], rows: Sequence[Row]) -> Page:
    events = [decode(entry, flat) for entry, flat in rows]
    return Page(
        _positions(marks, rows),
        [event.id for event in events],
        [event.source for event in events],
        [event.type for event in events],
        [event.key for event in events],
        [0 if event.time is None else exact_micros(event.time) for event in events],
        [event.headers for event in events],
        [event.data for event in events],
    )


def _positions(marks: Sequence[Mark], rows: Sequence[Row]) -> list[str]:
    """Many entries share their millisecond, and with it most of the text."""
    positions = []
    last, prefix = b"", ""
    for entry, _ in rows:
        milliseconds, _, seq = entry.partition(b"-")
        if milliseconds != last or len(marks) > 1:
            last, prefix = milliseconds, f"{epoch_of(marks, entry):04x}-{int(milliseconds):016x}-"
        positions.append(f"{prefix}{int(seq):016x}")
    return positions
