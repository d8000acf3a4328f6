"""The status of the WAL: of each event, of each batch, and of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import orjson

from holdfast.model.duration import format_duration
from holdfast.pipeline.wal import segments
from holdfast.pipeline.wal.log import Wal
from holdfast.pipeline.wal.records import Attempt, Confirmation, Failure, GaveUp, Lease
from holdfast.pipeline.wal.segments import row_names

State = Literal["pending", "confirmed", "failed", "quarantined"]


@dataclass(frozen=True, slots=True)
class BatchStatus:
    """What the WAL knows of a batch, and so of each of its entries."""

    name: str
    state: State
    created_at: datetime
    rows: int
    attempts: int
    last_attempt_at: datetime | None
    last_error: str | None
    confirmation: Confirmation | None
    gave_up: GaveUp | None
    lease_holder: str | None
    lease_expiry: datetime | None


@dataclass(frozen=True, slots=True)
class WalEntry:
    """One event. What its batch went through is repeated in each of its entries."""

    id: str
    transaction_id: str
    channel: str
    event_id: str
    position: str
    payload: bytes
    created_at: datetime
    attempts: int
    last_attempt_at: datetime | None
    last_error: str | None
    confirmed: bool
    confirmed_at: datetime | None
    failed_permanent: bool
    failed_at: datetime | None
    failure_reason: str | None
    lease_holder: str | None
    lease_expiry: datetime | None


def status(wal: Wal, name: str) -> BatchStatus:
    """One batch."""
    batch, lease, attempts = wal.batch(name), wal.leases.latest(name), wal.attempts(name)
    confirmation, gave_up = wal.confirmation(name), wal.gave_up(name)
    state: State = "pending"
    if confirmation is not None:
        state = "confirmed"
    elif gave_up is not None:
        state = "failed"
    elif wal.damage(name) is not None:
        state = "quarantined"
    last: Attempt | None = attempts[-1] if attempts else None
    held: Lease | None = lease if state == "pending" else None
    return BatchStatus(
        name,
        state,
        batch.created_at,
        batch.rows,
        lease.attempt if lease else 0,
        lease.taken_at if lease else None,
        last.error if last else None,
        confirmation,
        gave_up,
        held.holder if held else None,
        held.until if held else None,
    )


def entries(wal: Wal, name: str) -> Iterator[WalEntry]:
    """The entries of a batch, in the order of the log. A damaged batch raises `Damaged`."""
    batch, known = wal.batch(name), status(wal, name)
    failures = {failure.name: failure for failure in wal.failures(name)}
    rows = segments.read_all(wal.store, batch.segments)
    for each, row in zip(row_names(rows).to_pylist(), rows.to_pylist(), strict=True):
        yield _entry(each, row, known, failures.get(each))


def _entry(name: str, row: dict[str, Any], known: BatchStatus, failure: Failure | None) -> WalEntry:
    outcome = failure or known.gave_up
    confirmation = None if outcome else known.confirmation
    return WalEntry(
        id=f"{known.name}/{name}",
        transaction_id=row["transaction_id"],
        channel=row["channel"],
        event_id=row["id"],
        position=row["position"],
        payload=payload(row["data"], row["data_base64"]),
        created_at=known.created_at,
        attempts=known.attempts,
        last_attempt_at=known.last_attempt_at,
        last_error=outcome.error if outcome else known.last_error,
        confirmed=confirmation is not None,
        confirmed_at=confirmation.confirmed_at if confirmation else None,
        failed_permanent=outcome is not None,
        failed_at=outcome.failed_at if outcome else None,
        failure_reason=outcome.reason if outcome else None,
        lease_holder=known.lease_holder,
        lease_expiry=known.lease_expiry,
    )


def payload(data: str | None, data_base64: str | None) -> bytes:
    """A JSON document for any data: bytes that are no JSON are wrapped."""
    return data.encode() if data is not None else orjson.dumps({"data_base64": data_base64})


@dataclass(frozen=True, slots=True)
class WalHealth:
    """Whether the WAL takes events, holds them whole, and gets rid of them."""

    batches: int
    entries: int
    bytes: int
    oldest: timedelta | None
    """How long the oldest pending batch has waited."""
    quarantined: tuple[str, ...]
    failed: int
    """Batches that failed as a whole."""
    full: bool
    """Whether the ingest waits for room."""

    @property
    def ready(self) -> bool:
        """Whether new events can go in, and nothing in it is damaged."""
        return not self.full and not self.quarantined

    @property
    def message(self) -> str:
        """For people."""
        if self.quarantined:
            return f"damaged batches: {', '.join(self.quarantined[:3])}; see `quarantine/` of the WAL"
        if self.full:
            return f"full with {self.bytes} bytes pending: the warehouse does not keep up"
        waits = ""
        if self.oldest is not None:
            age = timedelta(seconds=round(self.oldest.total_seconds()))
            waits = f", the oldest for {format_duration(age)}"
        return f"{self.entries} entries pending in {self.batches} batches{waits}"


def health(wal: Wal) -> WalHealth:
    """The health of a WAL. Batches whose records are damaged are put into quarantine."""
    pending = wal.pending()  # may put some into quarantine
    survey = wal.survey()
    size = sum(batch.bytes for batch in pending)
    first: datetime | None = min((batch.created_at for batch in pending), default=None)
    return WalHealth(
        batches=len(pending),
        entries=sum(batch.rows for batch in pending),
        bytes=size,
        oldest=None if first is None else wal.clock() - first,
        quarantined=tuple(sorted(survey.quarantined)),
        failed=len(survey.failed),
        full=size >= wal.settings.max_bytes,
    )
