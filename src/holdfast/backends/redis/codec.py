"""Values on the wire: times, positions, epochs, flat hashes, and stream entries as events and as pages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import orjson

from holdfast.model.event import DEFAULT_SOURCE, DEFAULT_TYPE, Event, is_common
from holdfast.model.log import Page
from holdfast.model.position import parse_position

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
FAR = 2**53 - 1
"""The latest time that a score holds exactly, in microseconds: the year 2255. Later ones are cut."""

# What an entry of ours may carry; whatever else a foreign one has is its data.
_KNOWN = frozenset({"id", "source", "type", "key", "time", "headers", "at", "priority", "published"})

# An event of ours with or without a key, and with nothing else that not every event has.
_USUAL = (b"id", b"source", b"type", b"published", b"data", b"key")
_KEYED, _PLAIN = 2 * len(_USUAL), 2 * len(_USUAL) - 2
_NO_KEY = (b"key", None)
NO_HEADERS: Mapping[str, str] = {}

Values = tuple[str | bytes, ...]
"""An event as the publish script takes it."""
Row = tuple[bytes, list[bytes]]
"""An entry of a stream: its id and its fields, flat."""
EntryId = tuple[int, int]
"""An entry's id as numbers: milliseconds, sequence."""
Mark = tuple[int, EntryId]
"""An epoch, and the entry after which it begins."""


def to_micros(value: datetime | timedelta) -> int:
    """Microseconds since 1970, or of a duration; cut at `FAR`."""
    since = exact_micros(value) if isinstance(value, datetime) else value // _MICROSECOND
    return max(-FAR, min(since, FAR))


def exact_micros(time: datetime) -> int:
    """Microseconds since 1970 of a time that goes into no score."""
    return (time - _EPOCH) // _MICROSECOND


@lru_cache(maxsize=4096)
def from_micros(value: bytes | int) -> datetime:
    """The time of so many microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=min(int(value), FAR))


def pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    """A flat hash as a dictionary."""
    return {name.decode("utf-8", "replace"): value for name, value in zip(flat[::2], flat[1::2], strict=True)}


def named(name: str | None) -> str:
    """One name as a script takes it, or all of them."""
    return "*" if name is None else name


def position(epoch: bytes | int, entry: bytes) -> str:
    """The position of an entry of an epoch."""
    milliseconds, _, seq = entry.partition(b"-")
    return f"{int(epoch):04x}-{int(milliseconds):016x}-{int(seq):016x}"


def entry_of(position: str) -> tuple[int, bytes]:
    """The epoch and the entry's id of a position."""
    epoch, milliseconds, seq = parse_position(position, 2)
    return epoch, b"%d-%d" % (milliseconds, seq)


def parse_mark(mark: bytes) -> Mark:
    """A mark as it is stored."""
    epoch, _, entry = mark.partition(b" ")
    return int(epoch), parse_id(entry)


def parse_id(entry: bytes) -> EntryId:
    """An entry's id as numbers that compare."""
    milliseconds, _, seq = entry.partition(b"-")
    return int(milliseconds), int(seq)


def epoch_of(marks: Sequence[Mark], entry: bytes) -> int:
    """The epoch of an entry."""
    if len(marks) == 1:
        return marks[0][0]
    here = parse_id(entry)
    return next(epoch for epoch, start in reversed(marks) if start < here or (epoch, start) == marks[0])


def published_at(entry: bytes, flat: Sequence[bytes]) -> datetime:
    """When an entry was published: as it says, or as its id does."""
    return _time(entry, None, dict(zip(flat[::2], flat[1::2], strict=True)).get(b"published"))


def content_hash(event: Event) -> bytes:
    """What makes two events of one id the same. Headers and time do not: a retry often carries fresh ones."""
    kind = event.type.encode()
    key = b"\xff" if event.key is None else event.key.encode()  # no UTF-8 text has that byte
    return hashlib.sha256(b"%d:%b%d:%b%b" % (len(kind), kind, len(key), key, event.data)).digest()[:16]


def encode(event: Event) -> Values:
    """Id, source, type, key, time, headers, content hash and data."""
    data, name, source, kind, key, time, headers = event
    return (
        name,
        source,
        kind,
        "" if key is None else f"={key}",
        "" if time is None else time.isoformat(),
        orjson.dumps(dict(headers)) if headers else b"",
        content_hash(event),
        data,
    )


def decode(entry: bytes, flat: Sequence[bytes]) -> Event:
    """The event of an entry, ours or a foreign client's. What a foreign one lacks is taken from its id."""
    if len(flat) == 10 and flat[6] == b"published" and is_time(flat[7]):
        # Ours, with nothing but what every event has.
        return Event(flat[9], text(flat[1]), text(flat[3]), text(flat[5]), None, from_micros(flat[7]))
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    get = fields.get
    name, source, kind, key, data = get(b"id"), get(b"source"), get(b"type"), get(b"key"), get(b"data")
    headers = get(b"headers")
    return Event(
        _rest(fields) if data is None else data,
        text(name) if name else text(entry),
        text(source) if source else DEFAULT_SOURCE,
        text(kind) if kind else DEFAULT_TYPE,
        None if key is None else text(key),
        _time(entry, get(b"time"), get(b"published")),
        None if headers is None else _headers(headers),
    )


def patched(event: Event, data: bytes | None = None) -> Event:
    """The event as a consumer gets it: with other data where some replaces its own."""
    return event if data is None else event._replace(data=data)


def text(value: bytes) -> str:
    """The text of a field, whatever another client wrote there."""
    return value.decode("utf-8", "replace")


def is_time(value: bytes) -> bool:
    """Whether a field holds microseconds, as ours do."""
    return value.isdigit() and len(value) <= 16


def _rest(fields: Mapping[bytes, bytes]) -> bytes:
    """A foreign entry without `data`: its own fields are the data."""
    named = {text(name): text(value) for name, value in fields.items()}
    return orjson.dumps({name: value for name, value in named.items() if name not in _KNOWN})


def _time(entry: bytes, time: bytes | None, published: bytes | None) -> datetime:
    if time is not None:
        try:
            given = datetime.fromisoformat(time.decode())
        except ValueError:
            pass  # a foreign client's own format
        else:
            given = given if given.tzinfo else given.replace(tzinfo=UTC)
            if is_common(given):
                return given
    if published is not None and is_time(published):
        return from_micros(published)
    return from_micros(int(entry.partition(b"-")[0]) * 1000)


def _headers(headers: bytes) -> dict[str, str]:
    try:
        decoded: Any = orjson.loads(headers)
        if not isinstance(decoded, dict):
            return {}
        return {
            name: value if isinstance(value, str) else orjson.dumps(value).decode()
            for name, value in decoded.items()
        }
    except (ValueError, TypeError):  # TypeError: it reads what is too deep to be written again
        return {}


def decode_page(marks: Sequence[Mark], rows: Sequence[Row]) -> Page:
    """Return entries of one log, in order, as columns."""
    return _usual_page(marks, rows) or _any_page(marks, rows)


def _usual_page(marks: Sequence[Mark], rows: Sequence[Row]) -> Page | None:
    """Return the page if all of its entries are usual: transposed whole, which is faster than an object for
    each."""
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
            positions(marks, [entry for entry, _ in rows]),
            _texts(ids),
            _texts(sources),
            _texts(types),
            [None if key is None else key.decode() for key in keys],
            list(map(int, published)),
            [NO_HEADERS] * len(rows),
            list(data),
        )
    except UnicodeDecodeError:  # a foreign client's bytes
        return None


def _texts(values: Sequence[bytes]) -> list[str]:
    return list(map(bytes.decode, values))


def _any_page(marks: Sequence[Mark], rows: Sequence[Row]) -> Page:
    events = [decode(entry, flat) for entry, flat in rows]
    return Page(
        positions(marks, [entry for entry, _ in rows]),
        [event.id for event in events],
        [event.source for event in events],
        [event.type for event in events],
        [event.key for event in events],
        [0 if event.time is None else exact_micros(event.time) for event in events],
        [event.headers for event in events],
        [event.data for event in events],
    )


def positions(marks: Sequence[Mark], entries: Sequence[bytes]) -> list[str]:
    """The positions of entries in their order. Many share their millisecond, and with it most of the text."""
    found = []
    last, prefix = b"", ""
    for entry in entries:
        milliseconds, _, seq = entry.partition(b"-")
        if milliseconds != last or len(marks) > 1:
            last, prefix = milliseconds, f"{epoch_of(marks, entry):04x}-{int(milliseconds):016x}-"
        found.append(f"{prefix}{int(seq):016x}")
    return found
