"""The state machine of jobs: for every state and verb, what follows. What is not in the table is refused.

scheduled → ready → leased → done | dead, with leased → ready | scheduled (release, retry, abandonment),
scheduled | ready → dead (expiry) and → cancelled, leased → cancelled where that is asked for, dead → ready
(requeue, revive), dead → purged. Backends implement it, the conformance suite plays every cell of it on every
backend, and the simulator moves by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a job is. The first three are live; the others are terminal."""

    SCHEDULED = "scheduled"
    READY = "ready"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    PURGED = "purged"


LIVE = frozenset({State.SCHEDULED, State.READY, State.LEASED})


class Verb(StrEnum):
    """What can be done to a job: by workers, by operators, and by time alone."""

    CLAIM = "claim"
    COMPLETE = "complete"
    RETRY = "retry"
    """After a delay."""
    RELEASE = "release"
    """A retry at once, in the old place."""
    BURY = "bury"
    EXTEND = "extend"
    CANCEL = "cancel"
    """Only while the job waits."""
    CANCEL_RUNNING = "cancel_running"
    """The same, also while a worker has it, who loses its lease."""
    REQUEUE = "requeue"
    REVIVE = "revive"
    PURGE = "purge"
    PROMOTE = "promote"
    """The time of a scheduled job has come."""
    ABANDON = "abandon"
    """A lease ran out, and the budget allows another."""
    CRASH_LOOP = "crash_loop"
    """A lease ran out, and the budget is used up."""
    EXPIRE = "expire"
    """A job waited for too long."""


NEXT: Mapping[State, Mapping[Verb, State]] = {
    State.SCHEDULED: {
        Verb.PROMOTE: State.READY,
        Verb.REQUEUE: State.READY,
        Verb.CANCEL: State.CANCELLED,
        Verb.CANCEL_RUNNING: State.CANCELLED,
        Verb.EXPIRE: State.DEAD,
    },
    State.READY: {
        Verb.CLAIM: State.LEASED,
        Verb.REQUEUE: State.READY,
        Verb.CANCEL: State.CANCELLED,
        Verb.CANCEL_RUNNING: State.CANCELLED,
        Verb.EXPIRE: State.DEAD,
    },
    State.LEASED: {
        Verb.COMPLETE: State.DONE,
        Verb.RETRY: State.SCHEDULED,
        Verb.RELEASE: State.READY,
        Verb.BURY: State.DEAD,
        Verb.EXTEND: State.LEASED,
        Verb.CANCEL_RUNNING: State.CANCELLED,
        Verb.REQUEUE: State.READY,
        Verb.ABANDON: State.READY,
        Verb.CRASH_LOOP: State.DEAD,
    },
    State.DEAD: {Verb.REQUEUE: State.READY, Verb.REVIVE: State.READY, Verb.PURGE: State.PURGED},
    State.DONE: {},
    State.CANCELLED: {},
    State.DISCARDED: {},
    State.PURGED: {},
}


RESULTS: Mapping[Verb, State] = {verb: after for verbs in NEXT.values() for verb, after in verbs.items()}
"""Where each verb leads, wherever it is accepted."""


def follows(state: State, verb: Verb, *, discards: bool = False) -> State | None:
    """Return the state after a verb; None where it is refused. With `discards` the policy keeps no dead
    letters."""
    after = NEXT[state].get(verb)
    return State.DISCARDED if discards and after is State.DEAD else after
