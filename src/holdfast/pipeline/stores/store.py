"""The object store: what one must do, how to open one by its URL, and a probe of its conditional puts.

Names are relative keys of `/`-separated parts. An object is whole or absent, and durable when the call that
wrote it returns. A store that cannot be reached raises `Unavailable`; a put or swap that did has an unknown
outcome and is safe to repeat.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.config.urls import check_url
from holdfast.contracts import Finding
from holdfast.model.errors import InvalidInput, InvalidName, ObjectConflict

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
        """An object's bytes. Raises `NotFound`."""

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Parts of an object, from a first byte up to and without an end; only these are read. Raises
        `NotFound`."""

    def reader(self, name: str) -> BinaryIO:
        """An object as a file to seek and read in, part by part. Raises `NotFound`."""

    def tagged(self, name: str) -> Tagged:
        """An object's bytes with a tag that changes whenever they do. Raises `NotFound`."""

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
    """The name, if every store can hold it. Raises `InvalidName` otherwise."""
    parts = name.split("/")
    if len(name) > 900 or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidName(
            f"object name {name!r} is not usable: parts between slashes are letters, digits and ._=+@,- and "
            "begin with no dot; 240 characters each, 900 in all"
        )
    return name


def open_store(url: str, environment: Mapping[str, str] | None = None) -> ObjectStore:
    """A folder (`file:///data` or a path), `s3://bucket/prefix`, or `postgresql://…/database?table=name`.

    `environment` adds to this process's own: so an executor gets the driver's `AWS_*`. Other URLs raise
    `InvalidInput`.
    """
    folder = folder_of(url)
    if folder is not None:
        from holdfast.pipeline.stores.folder import FolderStore

        return FolderStore(folder)
    parts = urlsplit(url)
    match parts.scheme:
        case "s3" if parts.netloc and "@" not in parts.netloc:
            from holdfast.pipeline.stores.s3 import S3Store

            return S3Store(parts.netloc, parts.path.strip("/"), {**os.environ, **(environment or {})})
        case "postgresql" | "postgres":
            from holdfast.pipeline.stores.table import TableStore

            return TableStore(check_url(url))
    raise InvalidInput(
        f"no object store for a URL such as {parts.scheme}://…; write a path, file:///path, "
        "s3://bucket/prefix (with the key in AWS_ACCESS_KEY_ID) or postgresql://user@host/database?table=archive"
    )


def folder_of(url: str) -> Path | None:
    """The folder that a URL means; None where it means something else."""
    if "://" not in url:
        return Path(url).expanduser()
    parts = urlsplit(url)
    local = parts.scheme == "file" and parts.netloc in ("", "localhost")
    return Path(unquote(parts.path)).expanduser() if local else None


def cloud_environment() -> dict[str, str]:
    """This process's settings for S3, for executors."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


def probe(store: ObjectStore) -> list[Finding]:
    """Whether a store honours conditional puts: some clones of S3 return 200 and overwrite.

    Two small objects are written, read and removed. A warning says what a missing condition costs.
    """
    name = f"_probe/{secrets.token_hex(8)}"
    try:
        return [_if_absent(store, f"{name}-a"), _if_match(store, f"{name}-b")]
    finally:
        for letter in "ab":
            store.delete(f"{name}-{letter}")


def _if_absent(store: ObjectStore, name: str) -> Finding:
    store.put(name, b"first")
    try:
        store.put(name, b"second")
    except ObjectConflict:
        return Finding("ok", store.url, "put-if-absent (If-None-Match) is honoured: nothing is written over")
    return Finding(
        "warning",
        store.url,
        "put-if-absent (If-None-Match) is ignored: an object can be written over. Run one writer only; "
        "two of them are told apart by their lock alone",
    )


def _if_match(store: ObjectStore, name: str) -> Finding:
    store.put(name, b"first")
    tag = store.tagged(name).tag
    if store.swap(name, tag, b"second") and not store.swap(name, tag, b"third"):
        return Finding("ok", store.url, "compare-and-swap (If-Match) is honoured")
    return Finding(
        "warning",
        store.url,
        "compare-and-swap (If-Match) is ignored or refused: leases kept in this store are not safe",
    )
