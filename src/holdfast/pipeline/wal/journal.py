"""The journal: small records in an object store, each sealed with its checksum and written once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from holdfast.model.errors import Damaged, NotFound, ObjectConflict
from holdfast.pipeline.stores import ObjectStore

SUFFIX = ".json"
_HEAD, _TAIL = b'{"sha256":"%b","record":', b"}\n"


class Journal:
    """Records by name: `pending/{batch}`, without the suffix of the object."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    def add(self, name: str, body: Mapping[str, Any]) -> bool:
        """Write a record that is not there yet. False, and no change, where another one is."""
        try:
            self.store.put(name + SUFFIX, seal(body))
        except ObjectConflict:
            return False
        return True

    def read(self, name: str) -> dict[str, Any]:
        """A record, or `NotFound`, or `Damaged`."""
        return unseal(name, self.store.get(name + SUFFIX))

    def find(self, name: str) -> dict[str, Any] | None:
        """A record, or None where there is none."""
        try:
            return self.read(name)
        except NotFound:
            return None

    def has(self, name: str) -> bool:
        """Whether there is a record of that name."""
        return self.store.size(name + SUFFIX) is not None

    def names(self, folder: str) -> Iterator[str]:
        """The names in a folder, relative to it, in order."""
        for entry in self.store.list(folder):
            if entry.name.endswith(SUFFIX):
                yield entry.name[len(folder) + 1 : -len(SUFFIX)]

    def remove(self, name: str) -> None:
        """Remove a record that nobody needs any more."""
        self.store.delete(name + SUFFIX)


def seal(body: Mapping[str, Any]) -> bytes:
    """A record and its checksum: a changed byte anywhere shows."""
    text = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return _sealed(text)


def _sealed(text: bytes) -> bytes:
    return _HEAD % hashlib.sha256(text).hexdigest().encode() + text + _TAIL


def unseal(name: str, data: bytes) -> dict[str, Any]:
    """The record, if it is still what was written."""
    text = data[len(_HEAD % (b"0" * 64)) : -len(_TAIL)]
    if data != _sealed(text):
        raise Damaged(f"the record {name} does not match its checksum; restore it from a copy of the WAL")
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise Damaged(f"the record {name} has its checksum, and is no record; restore it from a copy")
    return found
