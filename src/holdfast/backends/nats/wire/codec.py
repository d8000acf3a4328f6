"""Events and times as messages carry them.

An event has CloudEvents' attributes in headers and its data as the body; a large one comes in parts. Times
are microseconds since 1970, or the server's own text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from urllib.parse import quote, unquote

import orjson

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage
from holdfast.backends.nats.wire.parser import VERSION, Raw, StoredMessage
from holdfast.model.event import DEFAULT_SOURCE, DEFAULT_TYPE, Event, is_common

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATEST = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_PART = 512_000
_MOST_IN_HEADER = 32_000  # of the 64 KB that the server allows for all; the attributes take up to 25,000
_SPARE = 1_000  # for the names of the headers and what the batch adds
_PLAIN = "!#$&'()*+,/:;=?@[]^`{|}~"  # with letters, digits and _.-~ what a header's value carries as it is
_RESERVED = ("nats-", "ce-", "holdfast-")


def to_micros(value: datetime | timedelta) -> int:
    """Return microseconds since 1970, or of a duration."""
    return (value - _EPOCH if isinstance(value, datetime) else value) // _MICROSECOND


def from_micros(value: int) -> datetime:
    """Return the time of so many microseconds since 1970, cut at the last year that a datetime can hold."""
    return _EPOCH + timedelta(microseconds=min(value, _LATEST))


def parse_stamp(text: str) -> int:
    """Return the server's RFC 3339 text, which has up to nine digits after the second, in microseconds."""
    whole, _, fraction = text.rstrip("Z").partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00")
    return to_micros(seconds) + int(fraction[:6].ljust(6, "0") or 0)


def format_stamp(micros: int) -> str:
    """Return a time as the server reads it."""
    return from_micros(max(micros, 0)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Delivery(NamedTuple):
    """How an event's jobs are to be delivered, and the publish of several batches that it belongs to."""

    at: int | None = None
    priority: int = 0
    publish: str | None = None


def content_hash(event: Event) -> str:
    """Return a hash of what two events of one id must share: a repeat may have other headers and times."""
    digest = hashlib.sha256()
    for part in (event.type.encode(), b"-" if event.key is None else b"+" + event.key.encode(), event.data):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()[:32]


def encode(channel: str, event: Event, delivery: Delivery, max_payload: int) -> list[BatchMessage]:
    """Return the messages of one event: the last one is the event, those before it are its parts."""
    headers = _attributes(event, delivery)
    extra = orjson.dumps(dict(event.headers)) if event.headers else b""
    quoted = _quoted(extra.decode())
    needed = len(event.data) + len(quoted) + sum(map(len, headers.values())) + _SPARE
    if len(quoted) <= _MOST_IN_HEADER and needed <= max_payload:
        if extra:
            headers[subjects.HEADERS] = quoted
        return [BatchMessage(channel, event.data, headers)]
    whole = len(extra).to_bytes(4, "big") + extra + event.data
    size = min(_PART, max_payload - _SPARE)
    parts = [
        BatchMessage(subjects.parts(channel), whole[at : at + size]) for at in range(0, len(whole), size)
    ]
    return [*parts, BatchMessage(channel, b"", headers | {subjects.PART_COUNT: str(len(parts))})]


def _attributes(event: Event, delivery: Delivery) -> dict[str, str]:
    headers = {subjects.CE_ID: _quoted(event.id)}
    if event.source != DEFAULT_SOURCE:
        headers[subjects.CE_SOURCE] = _quoted(event.source)
    if event.type != DEFAULT_TYPE:
        headers[subjects.CE_TYPE] = _quoted(event.type)
    if event.key is not None:
        headers[subjects.CE_KEY] = f"={_quoted(event.key)}"  # an empty value would be lost on the way
    if event.time is not None:
        headers[subjects.CE_TIME] = event.time.isoformat()
    if delivery.at is not None:
        headers[subjects.DUE] = str(delivery.at)
    if delivery.priority:
        headers[subjects.PRIORITY] = str(delivery.priority)
    if delivery.publish is not None:
        headers[subjects.PUBLISH] = delivery.publish
    return headers


def part_count(stored: StoredMessage) -> int:
    """Return how many messages before this one belong to it: in the same batch, or it only says so."""
    if subjects.PART_COUNT not in stored.headers:
        return 0
    count = _number(stored.headers.get(subjects.PART_COUNT)) or 0
    place = _number(stored.headers.get(subjects.BATCH_SEQUENCE)) or 0
    return count if 0 < count < place else 0


def delivery(stored: StoredMessage) -> Delivery:
    """Return how an event is to be delivered; a foreign one at once."""
    headers = stored.headers
    priority = _number(headers.get(subjects.PRIORITY)) or 0
    return Delivery(_number(headers.get(subjects.DUE)), priority, headers.get(subjects.PUBLISH))


def decode(
    stored: StoredMessage, published: Callable[[StoredMessage], int], whole: bytes | None = None
) -> Event:
    """Return the event of a message, ours or a foreign client's, with its parts put together.

    `published` tells when the message was stored, where that is the event's time.
    """
    headers = stored.headers
    data, extra = (stored.data, headers_of(headers)) if whole is None else unpacked(whole)
    return Event(
        data,
        event_id(stored),
        source(stored),
        kind(headers),
        key_in(headers.get(subjects.CE_KEY)),
        time_of(headers.get(subjects.CE_TIME)) or from_micros(published(stored)),
        extra,
    )


def unpacked(whole: bytes) -> tuple[bytes, Mapping[str, str]]:
    """Return data and headers of an event that came in parts. What is not as we write it is all data."""
    size = int.from_bytes(whole[:4], "big")
    try:
        headers = orjson.loads(whole[4 : 4 + size]) if size else {}
    except ValueError:
        headers = None
    if len(whole) < 4 + size or not isinstance(headers, dict):
        return whole, {}
    return whole[4 + size :], {name: str(value) for name, value in headers.items()}


def data_size(stored: StoredMessage) -> int:
    """Return how large an event's data is, or nearly, from its last message alone."""
    return part_count(stored) * _PART or len(stored.data)


def event_id(stored: StoredMessage) -> str:
    """Return the event's id; a foreign one without is called by its place in the stream."""
    headers = stored.headers
    return unquote(headers.get(subjects.CE_ID) or headers.get(subjects.MESSAGE_ID) or str(stored.seq))


def source(stored: StoredMessage) -> str:
    """Return the event's source, or the default."""
    return unquote(stored.headers.get(subjects.CE_SOURCE, "")) or DEFAULT_SOURCE


def kind(headers: Mapping[str, str]) -> str:
    """Return the event's type, or the default."""
    return unquote(headers.get(subjects.CE_TYPE, "")) or DEFAULT_TYPE


def key_in(text: str | None) -> str | None:
    """Return the event's key, if it has one."""
    return None if text is None else unquote(text.removeprefix("="))


def time_of(text: str | None) -> datetime | None:
    """Return the publisher's time, if it can be read: a foreign client may have a format of its own."""
    if not text:
        return None
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        return None
    given = given if given.tzinfo else given.replace(tzinfo=UTC)
    return given if is_common(given) else None


def headers_of(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the event's own headers: ours in one, those of a foreign client as they are."""
    if subjects.HEADERS in headers:
        return headers_in(headers[subjects.HEADERS])
    if headers.keys() <= subjects.OF_THE_SERVER_AND_OURS:
        return {}
    return {name: value for name, value in headers.items() if not name.lower().startswith(_RESERVED)}


def _quoted(text: str) -> str:
    return quote(text, safe=_PLAIN)


def _number(text: str | None) -> int | None:
    digits = (text or "").removeprefix("-")
    return int(text or 0) if digits.isascii() and digits.isdigit() and len(digits) < 19 else None


def headers_in(text: str | None) -> dict[str, str]:
    """Our headers as they are written into one."""
    if not text:
        return {}
    try:
        found = orjson.loads(unquote(text))
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


# What we publish ourselves has its headers in a fixed order, so that one expression reads them all and no
# event is made. Everything else is decoded event by event.


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


class EventRow(NamedTuple):
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


def rows(messages: Sequence[Raw]) -> list[EventRow] | None:
    """Return all messages as rows; None where one of them is not as we write it."""
    found: list[EventRow] = []
    for headers, data in messages:
        match = _MESSAGE.fullmatch(headers.decode(errors="replace"))
        if match is None:
            return None
        found.append(EventRow._make((*match.groups(), data)))
    return found
