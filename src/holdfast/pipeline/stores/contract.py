"""What an object store must do.

Names are relative keys of `/`-separated parts. An object is whole or not there at all, and durable when the
call that wrote it returns. What cannot be reached raises `Unavailable`; a put or swap that did is unknown,
and is safe to repeat.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol

from holdfast.model.errors import InvalidName

_PART = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]{0,239}")


class Entry(NamedTuple):
    """One object of a listing."""

    name: str
    size: int


class Tagged(NamedTuple):
    """An object's content, and what to show to `swap` for replacing it."""

    data: bytes
    tag: str


class ObjectStore(Protocol):
    """A place for objects."""

    url: str
    """Where it is, without credentials: for people, logs and events."""

    def put(self, name: str, data: bytes) -> bool:
        """Put if absent. True: it was written. False: it was there, with the same bytes.

        Other bytes under that name raise `ObjectConflict`, and stay.
        """

    def swap(self, name: str, tag: str, data: bytes) -> bool:
        """Replace an object while it still has that tag. False, and no change, otherwise; True where a
        repeat finds that it has these bytes already."""

    def get(self, name: str) -> bytes:
        """An object's bytes, or `NotFound`."""

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of an object, each from a first byte up to a last one, which is not in it, or `NotFound`. Not
        the whole is read."""

    def reader(self, name: str) -> BinaryIO:
        """An object as a file to seek and read in, or `NotFound`. Not the whole is read."""

    def tagged(self, name: str) -> Tagged:
        """An object's bytes with a tag that changes whenever they do, or `NotFound`."""

    def size(self, name: str) -> int | None:
        """An object's size; None where there is none."""

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """All objects under the folder `prefix`, in the order of their names."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""


def content_tag(data: bytes) -> str:
    """The tag of an object where the store has none of its own."""
    return hashlib.sha256(data).hexdigest()


def check_key(name: str) -> str:
    """The name if every store can hold it, else `InvalidName`."""
    parts = name.split("/")
    if len(name) > 900 or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidName(
            f"object name {name!r} is not usable: parts between slashes are letters, digits and ._=+@,- and "
            "begin with no dot; 240 characters each, 900 in all"
        )
    return name
