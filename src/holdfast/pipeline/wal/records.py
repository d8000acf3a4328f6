"""Records: what the WAL writes down about a batch, as small objects with checksums, written
once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

import orjson

from holdfast.model.errors import Damaged, NotFound, ObjectConflict
from holdfast.pipeline.stores import ObjectStore

SUFFIX = ".json"
_HEAD, _TAIL = b'{"sha256":"%b","record":', b"}\n"


@dataclass(frozen=True, slots=True)
class WalRecord:
    """A record as JSON and back. Names that end in `_at`, and `until`, are times."""

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in found.items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """A record from JSON. Raises `Damaged` where it is one of another kind or version."""
        try:
            return cls(**dict(_parsed(body)))
        except (TypeError, ValueError) as error:
            raise Damaged(f"a record of the WAL is no {cls.__name__} of this version: {error}") from None


def _parsed(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in body.items():
        is_time = value is not None and (name.endswith("_at") or name == "until")
        yield name, datetime.fromisoformat(value) if is_time else value


@dataclass(frozen=True, slots=True)
class Lease(WalRecord):
    """Who works on a batch. `number` rises with every claim and extension, `attempt` with every claim."""

    batch: str
    number: int
    attempt: int
    holder: str
    taken_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Attempt(WalRecord):
    """A failed attempt."""

    number: int
    holder: str
    failed_at: datetime
    retry_at: datetime
    error: str
    transient: bool


@dataclass(frozen=True, slots=True)
class Confirmation(WalRecord):
    """The warehouse has the batch: rows = inserted + duplicates + failed."""

    confirmed_at: datetime
    holder: str
    rows: int
    inserted: int
    duplicates: int
    failed: int


@dataclass(frozen=True, slots=True)
class Damage(WalRecord):
    """What is wrong with the files of a batch."""

    found_at: datetime
    error: str
    plan: Mapping[str, Any] | None = None
    """Its ranges, where they were known: the plan itself may be forgotten by another driver."""


@dataclass(frozen=True, slots=True)
class Acceptance(WalRecord):
    """Somebody accepted that a damaged batch is lost."""

    accepted_at: datetime
    by: str
    notes: str
    error: str
    rows: int


@dataclass(frozen=True, slots=True)
class GaveUp(WalRecord):
    """The batch failed as a whole, and with it all of its records that have no failure of their own."""

    failed_at: datetime
    reason: str
    layer: str
    error: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Failure(WalRecord):
    """One record that failed, with its whole event: it outlives the segment."""

    transaction_id: str
    channel: str
    partition: int
    position: str
    id: str
    source: str
    type: str
    key: str | None
    time: str
    headers: Mapping[str, str]
    data: str | None
    data_base64: str | None
    created_at: datetime
    failed_at: datetime
    reason: str
    layer: str
    error: str | None
    attempts: int

    @property
    def name(self) -> str:
        """Its name inside the batch: its place in the log, which tells two events under one id apart."""
        return f"{self.channel}@{self.partition}@{self.position}"


@dataclass(frozen=True, slots=True)
class Act(WalRecord):
    """What an operator, or the retry that one asked for, did about a failed record."""

    act: str
    """`retry`, `retry_failed`, `resolve` or `abandon`."""
    by: str
    done_at: datetime
    notes: str | None = None


class RecordStore:
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
        """A record. Raises `NotFound` or `Damaged`."""
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
    """The record. Raises `Damaged` where it is not what was written."""
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
