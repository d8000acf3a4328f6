"""Objects: the lines of one, if it is still what its manifest says."""

from __future__ import annotations

import hashlib
import zlib

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.archive.manifest import Written
from holdfast.pipeline.stores import ObjectStore

LARGEST = 1 << 30
"""Bytes that the lines of an object have at most: a few kilobytes can pretend to be any number of them."""
_GZIP = 31


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
