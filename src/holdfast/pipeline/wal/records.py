"""Records: what the WAL writes down about a batch, as values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from holdfast.model.errors import Damaged


@dataclass(frozen=True, slots=True)
class Record:
    """What all of them share: JSON and back. Names that end in `_at`, and `until`, are times."""

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in found.items()}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """As it was written; `Damaged` where it is a record of another kind, or of another version."""
        try:
            return cls(**dict(_parsed(body)))
        except (TypeError, ValueError) as error:
            raise Damaged(f"a record of the WAL is no {cls.__name__} of this version: {error}") from None


def _parsed(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in body.items():
        is_time = value is not None and (name.endswith("_at") or name == "until")
        yield name, datetime.fromisoformat(value) if is_time else value


@dataclass(frozen=True, slots=True)
class Lease(Record):
    """Who works on a batch. `number` rises with every claim and extension, `attempt` with every claim."""

    batch: str
    number: int
    attempt: int
    holder: str
    taken_at: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Attempt(Record):
    """A failed attempt."""

    number: int
    holder: str
    failed_at: datetime
    retry_at: datetime
    error: str
    transient: bool


@dataclass(frozen=True, slots=True)
class Confirmation(Record):
    """The warehouse has the batch: rows = inserted + duplicates + failed."""

    confirmed_at: datetime
    holder: str
    rows: int
    inserted: int
    duplicates: int
    failed: int


@dataclass(frozen=True, slots=True)
class Damage(Record):
    """What is wrong with the files of a batch."""

    found_at: datetime
    error: str


@dataclass(frozen=True, slots=True)
class Acceptance(Record):
    """Somebody accepted that a damaged batch is lost."""

    accepted_at: datetime
    by: str
    notes: str
    error: str
    rows: int


@dataclass(frozen=True, slots=True)
class GaveUp(Record):
    """The batch failed as a whole: whichever of its records have no failure of their own failed so."""

    failed_at: datetime
    reason: str
    layer: str
    error: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class Failure(Record):
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
        """Its name inside the batch: its place in the log, which tells two rivals under one id apart."""
        return f"{self.channel}@{self.partition}@{self.position}"


@dataclass(frozen=True, slots=True)
class Act(Record):
    """What an operator, or the retry that one asked for, did about a failed record."""

    act: str
    """`retry`, `retry_failed`, `resolve` or `abandon`."""
    by: str
    done_at: datetime
    notes: str | None = None
