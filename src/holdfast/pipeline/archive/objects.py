"""Archived objects: their names, their descriptions, and what they hold if they are still intact.

archive/{domain}/{YYYY}/{MM}/{DD}/{channel}-p{partition}-{first}_{last}.jsonl.gz
"""

from __future__ import annotations

import hashlib
import re
import zlib
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple

import orjson

from holdfast.model.errors import Damaged, InvalidName, NotFound
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import ObjectStore

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FOLDER = "archive"
_SUFFIX = ".jsonl.gz"
_NAME = re.compile(r"(?P<channel>.+)-p(?P<partition>[0-9]{3,6})-(?P<first>[0-9a-f-]+)_(?P<last>[0-9a-f-]+)")
_LARGEST = 1 << 30
"""The limit for an object's lines in bytes: a few compressed kilobytes can expand to any size."""
_GZIP = 31


class ObjectRange(NamedTuple):
    """The events of an object, as its name says."""

    channel: str
    partition: int
    first: str
    last: str

    @property
    def spot(self) -> ChannelPartition:
        """Where its events are from."""
        return ChannelPartition(self.partition, self.channel)


class Written(NamedTuple):
    """A durable object, as the executor that wrote it describes it."""

    object: str
    channel: str
    partition: int
    first: str
    last: str
    rows: int
    bytes: int
    sha256: str

    @property
    def spot(self) -> ChannelPartition:
        """Where its events are from."""
        return ChannelPartition(self.partition, self.channel)


class ObjectContent(NamedTuple):
    """What an object holds, read without a manifest."""

    written: Written
    """As a manifest would describe it."""
    events: tuple[tuple[str, str], ...]
    """Positions and ids, in order."""


def domain(channel: str) -> str:
    """The third token of `ns.events.{domain}.…`, else the whole name."""
    tokens = channel.split(".")
    return tokens[2] if len(tokens) >= 3 and tokens[1] == "events" else channel


def object_folder(channel: str) -> str:
    """The folder of all objects of a channel, and of the other channels of its domain."""
    return f"{_FOLDER}/{domain(channel)}"


def day_folder(day: date) -> str:
    """The part of a path that all objects of a day share. The year has four digits: it sorts by time."""
    return day.isoformat().replace("-", "/")


def object_name(events: ObjectRange, day: int) -> str:
    """`day` is the event's day, counted from 1970 in UTC."""
    return (
        f"{object_folder(events.channel)}/{day_folder((_EPOCH + timedelta(days=day)).date())}/"
        f"{events.channel}-p{events.partition:03}-{events.first}_{events.last}{_SUFFIX}"
    )


def sibling_name(name: str, first: str, last: str) -> str:
    """The name of an object of the same channel, store and day with other events."""
    folder, _, file = name.rpartition("/")
    found = _NAME.fullmatch(file.removesuffix(_SUFFIX))
    if found is None:
        raise InvalidName(f"{name!r} is no object of an archive")
    return f"{folder}/{file[: found.start('first')]}{first}_{last}{_SUFFIX}"


def parse_object(name: str) -> ObjectRange | None:
    """The events of an object by its name; None for a name that is not an archive's."""
    found = _NAME.fullmatch(name.rpartition("/")[2].removesuffix(_SUFFIX))
    if found is None or not name.endswith(_SUFFIX):
        return None
    return ObjectRange(found["channel"], int(found["partition"]), found["first"], found["last"])


def text_of(store: ObjectStore, written: Written) -> bytes:
    """The lines of an object. Raises `Damaged` where it is missing, torn, changed, or no gzip of lines."""
    try:
        data = store.get(written.object)
    except NotFound:
        raise Damaged(f"the object {written.object} is missing: see holdfast archive verify") from None
    found = hashlib.sha256(data).hexdigest()
    if len(data) != written.bytes or found != written.sha256:
        raise Damaged(
            f"the object {written.object} has {len(data)} bytes with the checksum {found}, and its manifest "
            f"says {written.bytes} with {written.sha256}: see holdfast archive verify"
        )
    return decompressed(written.object, data)


def decompressed(name: str, data: bytes, limit: int = _LARGEST) -> bytes:
    """The content of one gzip member. Raises `Damaged` where it is torn, over the limit, or no gzip."""
    member = zlib.decompressobj(wbits=_GZIP)
    try:
        text = member.decompress(data, limit)
    except zlib.error as error:
        raise Damaged(f"the object {name} is no gzip: {error}") from None
    if not member.eof or member.unused_data:
        raise Damaged(f"the object {name} ends early, goes on after its end, or has more than {limit} bytes")
    return text


def read_object(store: ObjectStore, name: str) -> ObjectContent | None:
    """What an object holds; None where it cannot be read, or does not match its name."""
    named = parse_object(name)
    if named is None:
        return None
    try:
        data = store.get(name)
        rows = [orjson.loads(line) for line in decompressed(name, data).splitlines()]
        events = tuple((row["position"], row["message_id"]) for row in rows)
    except (Damaged, NotFound, ValueError, LookupError, TypeError):
        return None
    if not events or (events[0][0], events[-1][0]) != (named.first, named.last):
        return None
    return ObjectContent(
        Written(name, *named, len(events), len(data), hashlib.sha256(data).hexdigest()), events
    )
