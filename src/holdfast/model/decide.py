"""Decisions: what becomes of a job when its lease ends or its time has come. Pure functions.

Budgets are judged when a lease ends, never while one runs, so that the last legitimate attempt is never
cut short. A claim adds an attempt; expiry takes it back and adds an abandonment.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from holdfast.model.deadletters import fingerprint
from holdfast.model.job import Burial, Failure, Job, Reason, Retry
from holdfast.model.policy import Policy

MAX_ERROR = 4_000


Ref = tuple[int | str, ...]
"""A backend's own handle of a job."""


class DueKind(StrEnum):
    """Why the lifecycle's read returned a job."""

    LEASE = "lease"
    SCHEDULE = "schedule"
    EXPIRY = "expiry"


@dataclass(frozen=True, slots=True)
class Due:
    """A job that needs the lifecycle, as phase one read it."""

    kind: DueKind
    ref: Ref
    token: int
    attempts: int
    abandonments: int
    expired: bool
    max_attempts: int
    max_abandonments: int
    worker: str | None = None
    max_runs: int | None = None
    discards: tuple[str, str] | None = None
    """The channel and the consumer, where its policy keeps no dead letters."""


class Move(StrEnum):
    """What phase two is asked to do with a due job."""

    PROMOTE = "promote"
    ABANDON = "abandon"
    BURY = "bury"


@dataclass(frozen=True, slots=True)
class Action:
    """A decision about a due job; the store checks again before it applies it."""

    move: Move
    due: Due
    reason: Reason | None = None
    failure: Failure | None = None


def describe(error: BaseException | str) -> Failure:
    """Return an attempt's error as it is stored: bounded text, its class and its fingerprint."""
    kind = "" if isinstance(error, str) else type(error).__name__
    try:
        text = str(error) or kind or "failed"
    except Exception:  # a handler may raise anything, even what cannot be printed
        text = f"{kind} without words"
    text = text[:MAX_ERROR].replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return Failure(text, kind, fingerprint(kind, text))


def after_failure(
    job: Job, policy: Policy, failure: Failure, *, terminal: bool, chance: random.Random
) -> Retry | Burial:
    """Decide after a failed attempt: retry with backoff while the budget lasts, else bury."""
    if terminal:
        return Burial(job, Reason.TERMINAL, failure)
    if job.attempt >= policy.max_attempts or _spent(job.attempt, job.abandonments, policy.max_runs):
        return Burial(job, Reason.MAX_ATTEMPTS, failure)
    return Retry(job, policy.backoff.delay(job.attempt, chance), failure)


def when_due(due: Due) -> Action:
    """Decide what the lifecycle asks for a job whose deadline has passed."""
    match due.kind:
        case DueKind.SCHEDULE:
            return Action(Move.PROMOTE, due)
        case DueKind.EXPIRY:
            return Action(Move.BURY, due, Reason.EXPIRED, describe("expired while waiting"))
        case DueKind.LEASE:
            return _after_abandonment(due)
        case _:
            assert_never(due.kind)


def _after_abandonment(due: Due) -> Action:
    failure = describe(f"lease expired without an answer from worker {due.worker or 'unknown'}")
    if due.abandonments + 1 >= due.max_abandonments or _spent(due.attempts, due.abandonments, due.max_runs):
        return Action(Move.BURY, due, Reason.CRASH_LOOP, failure)
    if due.attempts - 1 >= due.max_attempts:  # the budget was lowered while the lease ran
        return Action(Move.BURY, due, Reason.MAX_ATTEMPTS, failure)
    if due.expired:
        return Action(Move.BURY, due, Reason.EXPIRED, failure)
    return Action(Move.ABANDON, due, failure=failure)


def _spent(attempts: int, abandonments: int, max_runs: int | None) -> bool:
    """Return whether the run that ends now was the last one, however it and the others ended."""
    return max_runs is not None and attempts + abandonments >= max_runs
