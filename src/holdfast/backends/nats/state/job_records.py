"""Records: jobs as the stream keeps them, live and ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.model.job import Failure, JobRecord
from holdfast.model.states import LIVE, State

FIRST_ERRORS, LAST_ERRORS = 5, 10
"""Errors that a record keeps of many: a message has an end, and a job may be tried for ever."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """One event for one worker consumer. Times are microseconds of the store's clock.

    `lane` is the event's key where the consumer is ordered; `copy` the subject of its own copy of the event,
    which it has once it was a dead letter; `patch` the subject of the event with other data, which it hands
    out instead; `cluster` the fingerprint under which a dead letter is counted and indexed; `revision` the
    sequence of this very record, the one that the next must replace.
    """

    ref: str
    seq: int
    state: State
    event: str
    source: str
    created: int
    due: int
    priority: int = 0
    lane: str | None = None
    expires: int | None = None
    attempts: int = 0
    abandonments: int = 0
    token: int = 0
    lease: int | None = None
    worker: str | None = None
    ended: int | None = None
    reason: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    copy: str = ""
    patch: str = ""
    cluster: str | None = None
    revision: int = field(default=0, compare=False)

    @property
    def id(self) -> str:
        return str(self.seq)

    @property
    def rank(self) -> tuple[int, int, int]:
        """The order of claims: by priority, then due time, then place in the log."""
        return -self.priority, self.due, self.seq

    @property
    def fingerprint(self) -> str:
        """That of the last error."""
        return str(self.errors[-1].get("fingerprint", "")) if self.errors else ""

    def encode(self) -> bytes:
        return orjson.dumps(self)

    def failed(self, failure: Failure | None, now: int) -> tuple[dict[str, Any], ...]:
        """Return the errors so far, and one more; of many the first and the last ones."""
        if failure is None:
            return self.errors
        entry = {"attempt": self.attempts, "at": from_micros(now).isoformat(), **failure._asdict()}
        return (*self.errors[:FIRST_ERRORS], *self.errors[FIRST_ERRORS:][1 - LAST_ERRORS :], entry)

    def waiting(self, state: State, due: int, **changes: Any) -> StoredJob:
        """Return the same job without its lease."""
        return replace(self, state=state, due=due, lease=None, worker=None, **changes)

    def anew(self, now: int, wait: timedelta | None) -> StoredJob:
        """Return the job ready at the tail, with a newer token and fresh budgets; `wait` until it expires."""
        return self.waiting(
            State.READY,
            now,
            token=self.token + 1,
            attempts=0,
            abandonments=0,
            expires=None if wait is None else now + to_micros(wait),
            ended=None,
            reason=None,
            cluster=None,
        )

    def at_end(self, state: State, now: int, **changes: Any) -> StoredJob:
        """Return the same job at its end."""
        return replace(self, state=state, ended=now, lease=None, worker=None, **changes)


def decode(data: bytes, revision: int) -> StoredJob:
    """Return a record as it was stored."""
    stored: dict[str, Any] = orjson.loads(data)
    stored["state"], stored["errors"] = State(stored["state"]), tuple(stored["errors"])
    stored["revision"] = revision  # what was written there is the one that it replaced
    return StoredJob(**stored)


def job_number(job_id: str) -> int:
    """Return the sequence that a job's id stands for; 0, which no job has, for any other text."""
    number = int(job_id) if job_id.isascii() and job_id.isdigit() and len(job_id) < 19 else 0
    return number if str(number) == job_id else 0


def encode_counts(counts: Mapping[str, int]) -> bytes:
    return orjson.dumps({str(name): number for name, number in counts.items() if number})


def shown(record: StoredJob, channel: str, consumer: str, position: str) -> JobRecord:
    """Return the job as an operator sees it."""

    def time(micros: int | None) -> datetime | None:
        return None if micros is None else from_micros(micros)

    return JobRecord(
        record.id,
        channel,
        consumer,
        record.state,
        record.event,
        record.source,
        position,
        record.attempts,
        record.abandonments,
        record.token,
        record.priority,
        from_micros(record.created),
        from_micros(record.due) if record.state in LIVE else None,
        time(record.lease),
        time(record.ended),
        record.worker,
        record.reason,
        list(record.errors),
    )
