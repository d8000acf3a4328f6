"""Events: immutable facts, named as CloudEvents 1.0 names them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, Self, overload

from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.gc_pause import gc_disabled

DEFAULT_SOURCE = "default"
DEFAULT_TYPE = "event"
MAX_DATA = 1_048_576
MAX_TEXT = 512
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16_384
FARTHEST = timedelta(hours=16)
"""No zone of a time is so far from UTC: PostgreSQL would not take it."""

_NO_HEADERS: Mapping[str, str] = {}
# What holds itself ends in a RecursionError: to look for it everywhere costs as much as to encode.
_encode = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode
UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
"""What `new_id` makes, as a regular expression."""
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}  # RFC 9562
# What PostgreSQL text, a Redis field or a NATS header cannot carry: NUL, other controls, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
SAFE = r"[^\x00-\x1f\x7f]*"
"""The same of a text that can be encoded, as a regular expression."""


class _Fields(NamedTuple):
    data: bytes
    id: str = ""
    source: str = DEFAULT_SOURCE
    type: str = DEFAULT_TYPE
    key: str | None = None
    time: datetime | None = None
    headers: Mapping[str, str] = _NO_HEADERS


class Event(_Fields):
    """One event. `data` is bytes; any JSON value, or model, given for it is encoded on construction.

    A tuple underneath: immutable, and three times as fast to build as a frozen dataclass.
    """

    __slots__ = ()

    def __new__(
        cls,
        data: Any = None,
        id: str = "",  # noqa: A002 - CloudEvents' own name
        source: str = DEFAULT_SOURCE,
        type: str = DEFAULT_TYPE,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        time: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        encoded = data if data.__class__ is bytes else encode_data(data)
        return tuple.__new__(cls, (encoded, id, source, type, key, time, headers or _NO_HEADERS))

    def json(self) -> Any:
        """Return the data as a JSON value. Raises `InvalidInput` where it is not JSON."""
        try:
            return json.loads(self.data)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"event {self.id!r} carries no JSON: {error}; read .data instead") from None


class EventColumns(Sequence[Event]):
    """The events of one publish by column, in the order of the fields of `Event`.

    The events themselves are made when one is first asked for: a store that takes columns never does.
    """

    def __init__(self, columns: Sequence[Sequence[Any]]) -> None:
        self.columns = columns

    @classmethod
    def of(cls, events: Sequence[Event]) -> Self:
        """Return the columns of at least one event."""
        if isinstance(events, cls):
            return events
        with gc_disabled():
            return cls(list(zip(*events, strict=True)))

    @cached_property
    def _events(self) -> list[Event]:
        with gc_disabled():
            return list(map(tuple.__new__, repeat(Event), zip(*self.columns, strict=True)))

    @property
    def data(self) -> Sequence[bytes]:
        """The data of each event."""
        return self.columns[0]

    @property
    def ids(self) -> Sequence[str]:
        """The id of each event."""
        return self.columns[1]

    def has_only_data(self) -> bool:
        """Return whether the events leave all but data to the defaults and fit: then nothing can be wrong."""
        defaults = _Fields._field_defaults.values()
        return max(map(len, self.data)) <= MAX_DATA and all(
            column.count(default) == len(column)
            for column, default in zip(self.columns[1:], defaults, strict=True)
        )

    def __len__(self) -> int:
        return len(self.data)

    @overload
    def __getitem__(self, place: int) -> Event: ...
    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...
    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._events[place]


def encode_data(data: Any) -> bytes:
    """Return bytes as they are, any other value as JSON, also a pydantic model or a dataclass.

    Raises `InvalidInput` for what is no JSON value.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    try:
        return _encode(data).encode()
    except (TypeError, ValueError, RecursionError) as error:
        from holdfast import typed  # which imports this module

        if typed.is_model(data):
            return typed.dump(data)
        raise InvalidInput(f"event data of type {type(data).__name__} is no JSON value: {error}") from None


def check_types(events: Sequence[Event]) -> None:
    """Raise `InvalidInput` for what is no sequence of events, but of data, say."""
    kinds = set() if isinstance(events, EventColumns) else set(map(type, events))
    for kind in kinds:
        if not issubclass(kind, Event):
            raise InvalidInput(f"a {kind.__name__} is no event; pass holdfast.Event(data, id=…) for each")


def check_event(event: Event) -> Event:
    """Return the event. Raises `InvalidInput` for what some backend could not carry."""
    data, name, source, kind, key, time, headers = event
    if len(data) > MAX_DATA:
        raise TooLarge(f"event {name!r} has {len(data)} bytes of data; the limit is {MAX_DATA}")
    if name:
        _check_text("id", name)
    if source is not DEFAULT_SOURCE:
        _check_text("source", source)
    if kind is not DEFAULT_TYPE:
        _check_text("type", kind)
    if key is not None:
        _check_text("key", key)
    if not source or not kind:
        raise InvalidInput(f"event {name!r} has an empty source or type; leave them out for the defaults")
    if time is not None:
        check_time(f"the time of event {name!r}", time)
    if headers:
        _check_headers(event)
    return event


def check_time(what: str, time: datetime) -> None:
    """Raise `InvalidInput` for a time that some store, or a reader of it, could not hold."""
    if not isinstance(time, datetime):
        raise InvalidInput(f"{what}, {time!r}, is no time; pass a datetime with a zone")
    if time.tzinfo is None:
        raise InvalidInput(f"{what}, {time}, is without a zone; add one")
    if abs(time.utcoffset() or timedelta()) >= FARTHEST:
        raise InvalidInput(f"{what}, {time}, has a zone of 16 hours or more; use one nearer to UTC")
    if not is_common(time):
        raise InvalidInput(f"{what}, {time}, is outside the years 1 to 9999 in UTC; use one inside them")


def is_common(time: datetime) -> bool:
    """Return whether a time with a zone exists in UTC too: at the ends of the calendar it may not."""
    if 1 < time.year < 9999:
        return True
    try:
        time.astimezone(UTC)
    except OverflowError:
        return False
    return True


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"event {what} {text!r} is not text; pass a str")
    if len(text) > MAX_TEXT:
        raise TooLarge(f"event {what} of {len(text)} characters; the limit is {MAX_TEXT}")
    if _UNSAFE.search(text):
        raise InvalidInput(f"event {what} {text!r} contains control characters; remove them")


def _check_headers(event: Event) -> None:
    headers = event.headers
    if not isinstance(headers, Mapping):
        raise InvalidInput(f"event {event.id!r} has the headers {headers!r}; pass a mapping of text to text")
    if len(headers) > MAX_HEADERS:
        raise TooLarge(f"event {event.id!r} has {len(headers)} headers; the limit is {MAX_HEADERS}")
    for name, value in headers.items():
        _check_text("header name", name)
        if not isinstance(value, str) or _UNSAFE.search(value):
            raise InvalidInput(
                f"header {name!r} has the value {value!r}; use text without control characters"
            )
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > MAX_HEADER_BYTES:
        raise TooLarge(
            f"event {event.id!r} has {size} characters of headers; the limit is {MAX_HEADER_BYTES}"
        )


def new_ids(count: int) -> Iterator[str]:
    """Return UUIDv7s: unique without coordination, and they sort by time.

    Those of one call count up from a random number, so that a batch fills an index of ids from one end.
    """
    stamp = f"{time.time_ns() // 1_000_000:012x}"
    random = os.urandom(10).hex()
    prefix = f"{stamp[:8]}-{stamp[8:]}-7{random[:3]}-{_VARIANT[random[3]]}{random[4:7]}-"
    start = int(random[7:18], 16)
    return map(f"{prefix}%012x".__mod__, range(start, start + count))


def new_id() -> str:
    """Return one UUIDv7."""
    return next(new_ids(1))


class Receipt(NamedTuple):
    """What publish returns: the event is durable, at this position, under this id."""

    id: str
    position: str
    duplicate: bool = False


def receipts(ids: Sequence[str], prefix: str, numbers: Sequence[int]) -> list[Receipt]:
    """Return the receipts of new events whose positions differ in their last field only."""
    positions = map(f"{prefix}-%016x".__mod__, numbers)
    made = zip(ids, positions, repeat(False, len(ids)), strict=True)
    with gc_disabled():
        return list(map(tuple.__new__, repeat(Receipt), made))


class LogEntry(NamedTuple):
    """An event as it stands in its channel's log."""

    channel: str
    position: str
    event: Event
