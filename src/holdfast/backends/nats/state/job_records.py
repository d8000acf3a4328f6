"""Records: jobs as the stream keeps them, live and ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.job import Failure, JobRecord
from holdfast.model.states import LIVE, State

FIRST_ERRORS, LAST_ERRORS = 5, 10
"""Errors that a record keeps of many: a message has an end, and a job may be tried for ever."""
IN_LOG = -1
"""The origin of a job that waits in the log."""
_LATEST = 1 << 60


@dataclass(frozen=True, slots=True)
class StoredJob:
    """One event for one worker consumer. Times are microseconds of the store's clock.

    `lane` is the event's key where the consumer is ordered; `copy` the subject of its own copy of the event,
    which it has once it was a dead letter; `patch` the subject of the event with other data, which it hands
    out instead; `cluster` the fingerprint under which a dead letter is counted and indexed; `revision` the
    sequence of this very record, the one that the next must replace.

    `origin` tells where a job is that has no record yet: `IN_LOG`, or the token of its lease. Then `revision`
    is that of the lease's record.
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
    cancelled_by: str | None = None
    errors: tuple[dict[str, Any], ...] = ()
    copy: str = ""
    patch: str = ""
    cluster: str | None = None
    origin: int | None = None
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


def of_entry(member: Member, message: StoredMessage, published: int) -> StoredJob:
    """Return the job that an event becomes for a consumer, when it leaves the log."""
    policy, delivery, headers = member.policy, codec.delivery(message), message.headers
    due = published if delivery.at is None else max(published, min(delivery.at, _LATEST))
    return StoredJob(
        member.ref,
        message.seq,
        State.SCHEDULED if due > published else State.READY,
        codec.event_id(message),
        codec.source(message),
        published,
        due,
        delivery.priority,
        headers.get(subjects.CE_KEY) if policy.ordered else None,
        expiry(member, due),
    )


def expiry(member: Member, due: int) -> int | None:
    """Return when a job expires that could run since then: its consumer may be younger than its event."""
    wait = member.policy.expires_after
    return None if wait is None else max(due, member.created) + to_micros(wait)


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
        record.cancelled_by,
    )
