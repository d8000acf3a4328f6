"""Columns: events of the log as lists, one for each attribute.

What we publish ourselves has its headers in a fixed order, so that one expression reads them all, and no
event is made. Everything else is decoded event by event.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from holdfast.backends.nats import codec, subjects
from holdfast.backends.nats.answers import Raw
from holdfast.backends.nats.registry import Registry
from holdfast.backends.nats.times import parse_stamp, to_micros
from holdfast.backends.nats.wire import VERSION
from holdfast.model.event import DEFAULT_SOURCE, DEFAULT_TYPE, Event
from holdfast.model.log import Page

_SECOND = len("2025-01-01T00:00:00")


def _kept(*names: str) -> str:
    return "".join(f"(?:{name}: ([^\r]*)\r\n)?" for name in names)


def _passed(*names: str) -> str:
    return "".join(f"(?:{name}: [^\r]*\r\n)?" for name in names)


_MESSAGE = re.compile(
    f"{VERSION}\r\n{subjects.CE_ID}: ([^\r]+)\r\n"
    + _kept(subjects.CE_SOURCE, subjects.CE_TYPE, subjects.CE_KEY, subjects.CE_TIME)
    + _passed(subjects.DUE, subjects.PRIORITY)
    # Only in a batch of ours: what another client says of itself goes the slow way.
    + f"(?:{subjects.PUBLISH}: ({subjects.PUBLISH_NAME})\r\n"
    + f"(?={_passed(subjects.HEADERS)}{subjects.BATCH}: ))?"
    + _kept(subjects.HEADERS)
    + _passed(subjects.BATCH, subjects.BATCH_SEQUENCE, subjects.COMMIT, subjects.HELD, subjects.SUBJECT)
    + f"{subjects.SEQUENCE}: ([^\r]*)\r\n{subjects.STAMP}: ([^\r]*)\r\n"
    + _passed(subjects.PENDING, subjects.LAST_SEQUENCE)
    + "\r\n"
)


class Row(NamedTuple):
    """One of our own messages: its headers as they are written, and its data."""

    id: str
    source: str | None
    type: str | None
    key: str | None
    time: str | None
    publish: str | None
    headers: str | None
    seq: str
    stamp: str
    data: bytes


def rows(messages: Sequence[Raw]) -> list[Row] | None:
    """All messages as rows; None where one of them is not as we write it."""
    found: list[Row] = []
    for headers, data in messages:
        match = _MESSAGE.fullmatch(headers.decode(errors="replace"))
        if match is None:
            return None
        found.append(Row._make((*match.groups(), data)))
    return found


def page_of_rows(found: Sequence[Row], registry: Registry) -> Page:
    """Rows as a page."""
    ids, sources, types, keys, times, _, headers, numbers, stamps, data = zip(*found, strict=True)
    seqs = [int(number) for number in numbers]
    stored = _stored(stamps, seqs, registry)
    given = {text: codec.time_of(text) for text in set(times)}
    extras = {text: codec.headers_in(text) for text in set(headers)}
    named = {text: codec.key_in(text) for text in set(keys)}
    return Page(
        _positions(seqs, registry),
        [unquote(text) for text in ids],
        _texts(sources, DEFAULT_SOURCE),
        _texts(types, DEFAULT_TYPE),
        [named[text] for text in keys],
        [to_micros(at) if (at := given[text]) else when for text, when in zip(times, stored, strict=True)],
        [extras[text] for text in headers],
        list(data),
    )


def page_of_events(found: Sequence[tuple[int, Event]], registry: Registry) -> Page:
    """Events with their sequences as a page."""
    events = [event for _, event in found]
    return Page(
        _positions([seq for seq, _ in found], registry),
        [event.id for event in events],
        [event.source for event in events],
        [event.type for event in events],
        [event.key for event in events],
        [to_micros(event.time) if event.time else 0 for event in events],
        [event.headers for event in events],
        [event.data for event in events],
    )


def _texts(column: Sequence[str | None], default: str) -> list[str]:
    """Most columns have few values."""
    values = {text: unquote(text or "") or default for text in set(column)}
    return [values[text] for text in column]


def _positions(seqs: Sequence[int], registry: Registry) -> list[str]:
    """One epoch, mostly: only the last field differs."""
    first, last = registry.position(seqs[0]), registry.position(seqs[-1])
    epoch = first.partition("-")[0]
    if last.partition("-")[0] != epoch:
        return [registry.position(seq) for seq in seqs]
    return [f"{epoch}-{seq:016x}" for seq in seqs]


def _stored(stamps: Sequence[str], seqs: Sequence[int], registry: Registry) -> list[int]:
    """When each message was stored. Most are of the same few seconds."""
    seconds = {second: parse_stamp(second) for second in {stamp[:_SECOND] for stamp in stamps}}
    micros = [
        seconds[stamp[:_SECOND]] + int(stamp[_SECOND + 1 : _SECOND + 7].rstrip("Z").ljust(6, "0"))
        for stamp in stamps
    ]
    offset = registry.offset_at(seqs[0])
    if offset == registry.offset_at(seqs[-1]):
        return [at + offset for at in micros] if offset else micros
    return [at + registry.offset_at(seq) for at, seq in zip(micros, seqs, strict=True)]
