"""Jobs: one event for one worker consumer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.states import State

LONGEST_REASON = 500
"""Characters of who cancelled a job, and of why."""


class Reason(StrEnum):
    """Why a job died."""

    MAX_ATTEMPTS = "max_attempts"
    CRASH_LOOP = "crash_loop"
    EXPIRED = "expired"
    TERMINAL = "terminal"


class Completion(StrEnum):
    """How far the completion of a job in a transaction has come, as far as this process knows."""

    NONE = "none"
    BEGUN = "begun"
    """The block of `Job.transaction` runs."""
    OPEN = "open"
    """A transaction completes the job, and may be committed or not."""
    DONE = "done"
    """It was committed."""


class Transaction(Protocol):
    """What `Job.transaction` returns: `async with`, or `with` in a thread."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool: ...


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
    completion: Completion = field(default=Completion.NONE, compare=False, repr=False)
    open_transaction: Callable[[Job], Transaction] | None = field(default=None, compare=False, repr=False)
    cancelled: bool = field(default=False, compare=False)
    """Whether somebody has cancelled the job while its handler runs: stop, since the result does not count. A
    worker sets it; a plain function, which nobody can stop, looks at it now and then."""

    def transaction(self) -> Transaction:
        """Return a block whose transaction also completes this job: what it writes and the end of the job are
        committed together, or neither is.

        `async with` gives a `psycopg.AsyncConnection` to the job's own store, `with` a `psycopg.Connection`.
        Where the lease was lost, nothing is committed and the end of the block raises `LeaseLost`. Raises
        `InvalidInput` on Redis and NATS, and for a job that is in such a block, or completed, already.
        """
        if self.open_transaction is None:
            raise InvalidInput(f"job {self.id} was not polled from a bus; only such a job has a transaction")
        return self.open_transaction(self)


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


class Cancellation(NamedTuple):
    """Whether leased jobs are meant too, and who cancels, and why: kept with each job."""

    running: bool = False
    by: str | None = None
    reason: str | None = None


def check_cancellation(running: bool, by: str | None, reason: str | None) -> Cancellation:
    """Return how to cancel, or raise `InvalidInput` where a record cannot hold who does it or why."""
    for what, text in (("by", by), ("reason", reason)):
        if text is not None and not (0 < len(text) <= LONGEST_REASON and text.isprintable()):
            raise InvalidInput(
                f"{what} {text[:200]!r} is not usable; use 1 to {LONGEST_REASON} printable characters"
            )
    return Cancellation(running, by, reason)


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
    """Why it died, or was cancelled, where whoever did that gave a reason."""
    errors: list[dict[str, Any]]
    cancelled_by: str | None = None
    """Who cancelled it, where that is known."""
