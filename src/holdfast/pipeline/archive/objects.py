"""Objects: the lines of one, if it is still what its manifest says."""

from __future__ import annotations

import hashlib
import zlib
from typing import NamedTuple

import orjson

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.archive import naming
from holdfast.pipeline.archive.manifest import Written
from holdfast.pipeline.stores import ObjectStore

LARGEST = 1 << 30
"""Bytes that the lines of an object have at most: a few kilobytes can pretend to be any number of them."""
_GZIP = 31


class Lines(NamedTuple):
    """What an object holds that no manifest describes."""

    written: Written
    """As a manifest would describe it."""
    events: tuple[tuple[str, str], ...]
    """Positions and ids, in order."""


def text_of(store: ObjectStore, written: Written) -> bytes:
    """The lines of an object. `Damaged` where it is gone, torn, changed, or no gzip of lines."""
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
    return unpacked(written.object, data)


def unpacked(name: str, data: bytes, most: int = LARGEST) -> bytes:
    """What one gzip member holds, up to a limit; `Damaged` where it is more, less or none."""
    member = zlib.decompressobj(wbits=_GZIP)
    try:
        text = member.decompress(data, most)
    except zlib.error as error:
        raise Damaged(f"the object {name} is no gzip: {error}") from None
    if not member.eof or member.unused_data:
        raise Damaged(f"the object {name} ends early, goes on after its end, or has more than {most} bytes")
    return text


def read_lines(store: ObjectStore, name: str) -> Lines | None:
    """What an object holds; None where it cannot be read, or is not what its name says."""
    batch = naming.parse_object(name)
    if batch is None:
        return None
    try:
        data = store.get(name)
        rows = [orjson.loads(line) for line in unpacked(name, data).splitlines()]
        events = tuple((row["position"], row["message_id"]) for row in rows)
    except (Damaged, NotFound, ValueError, LookupError, TypeError):
        return None
    if not events or (events[0][0], events[-1][0]) != (batch.first, batch.last):
        return None
    digest = hashlib.sha256(data).hexdigest()
    sizes = (len(events), len(data), digest)
    return Lines(Written(name, batch.channel, batch.partition, batch.first, batch.last, *sizes), events)
