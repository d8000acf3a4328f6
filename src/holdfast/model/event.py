"""Events: immutable facts, named as CloudEvents 1.0 names them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.model.errors import InvalidInput, TooLarge

DEFAULT_SOURCE = "default"
DEFAULT_TYPE = "event"
MAX_DATA = 1_048_576
MAX_TEXT = 512
MAX_HEADERS = 64
MAX_HEADER_BYTES = 16_384

_NO_HEADERS: Mapping[str, str] = {}
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
# What PostgreSQL text, a Redis field or a NATS header cannot carry: NUL, other controls, lone surrogates.
_UNSAFE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `data` is bytes; any JSON value given for it is encoded on construction."""

    data: bytes
    id: str = ""
    source: str = DEFAULT_SOURCE
    type: str = DEFAULT_TYPE
    key: str | None = None
    time: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=lambda: _NO_HEADERS)

    def __init__(
        self,
        data: Any = None,
        id: str = "",  # noqa: A002 - CloudEvents' own name
        source: str = DEFAULT_SOURCE,
        type: str = DEFAULT_TYPE,  # noqa: A002 - CloudEvents' own name
        key: str | None = None,
        time: datetime | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "data", data if data.__class__ is bytes else encode_data(data))
        put(self, "id", id)
        put(self, "source", source)
        put(self, "type", type)
        put(self, "key", key)
        put(self, "time", time)
        put(self, "headers", headers or _NO_HEADERS)

    def json(self) -> Any:
        """The data as a JSON value; raises `InvalidInput` where it is not JSON."""
        try:
            return json.loads(self.data)
        except ValueError as error:
            raise InvalidInput(f"event {self.id!r} carries no JSON: {error}; read .data instead") from None


def encode_data(data: Any) -> bytes:
    """Bytes as they are, text and every other JSON value as JSON."""
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    try:
        return _encode(data).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"event data of type {type(data).__name__} is no JSON value: {error}") from None


def check_event(event: Event) -> Event:
    """Refuse what some backend could not carry, before anything is sent."""
    if len(event.data) > MAX_DATA:
        raise TooLarge(f"event {event.id!r} has {len(event.data)} bytes of data; the limit is {MAX_DATA}")
    for what, text in (("id", event.id), ("source", event.source), ("type", event.type), ("key", event.key)):
        if text is not None:
            _check_text(what, text)
    if not event.source or not event.type:
        raise InvalidInput(f"event {event.id!r} has an empty source or type; leave them out for the defaults")
    if event.time is not None and event.time.tzinfo is None:
        raise InvalidInput(f"event {event.id!r} has the time {event.time} without a zone; add one")
    if event.headers:
        _check_headers(event)
    return event


def _check_text(what: str, text: str) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"event {what} {text!r} is not text; pass a str")
    if len(text) > MAX_TEXT:
        raise TooLarge(f"event {what} of {len(text)} characters; the limit is {MAX_TEXT}")
    if _UNSAFE.search(text):
        raise InvalidInput(f"event {what} {text!r} contains control characters; remove them")


def _check_headers(event: Event) -> None:
    headers = event.headers
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


def new_id() -> str:
    """A UUID of version 7: unique without coordination, and it sorts by time."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80 | 0x7000 << 64 | (random >> 68) << 64
    value |= 0x8 << 60 | random & (1 << 60) - 1
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


@dataclass(frozen=True, slots=True)
class Receipt:
    """What publish answers: the event is durable, at this position, under this id."""

    id: str
    position: str
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An event as it stands in its channel's log."""

    channel: str
    position: str
    event: Event
