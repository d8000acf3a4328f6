"""Jobs: one event for one worker consumer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from holdfast.model.event import Event
from holdfast.model.states import State


class Reason(StrEnum):
    """Why a job died."""

    MAX_ATTEMPTS = "max_attempts"
    CRASH_LOOP = "crash_loop"
    EXPIRED = "expired"
    TERMINAL = "terminal"


@dataclass(slots=True)
class Job:
    """A leased job as poll hands it out. Its token fences every later call about it."""

    id: str
    channel: str
    consumer: str
    event: Event
    position: str
    attempt: int
    abandonments: int
    token: int
    lease_until: datetime
    partition: int = 0


class Failure(NamedTuple):
    """What one attempt's error looked like."""

    error: str
    kind: str = ""
    fingerprint: str = ""


class Retry(NamedTuple):
    """Back to waiting for `delay`. Without a failure (snooze) the attempt is given back.

    `delay` None is a release: ready at once, in its old place, the attempt given back.
    """

    job: Job
    delay: timedelta | None
    failure: Failure | None = None


class Burial(NamedTuple):
    """Give up on a leased job."""

    job: Job
    reason: Reason
    failure: Failure


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as an operator sees it, live or terminal."""

    id: str
    channel: str
    consumer: str
    state: State
    event_id: str
    source: str
    position: str
    attempts: int
    abandonments: int
    token: int
    priority: int
    created_at: datetime
    due_at: datetime | None
    lease_until: datetime | None
    ended_at: datetime | None
    worker: str | None
    reason: str | None
    errors: list[dict[str, Any]]
