"""Decisions: what becomes of a job when its lease ends or its time has come."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.deadletters import fingerprint
from holdfast.model.decide import MAX_ERROR, Due, DueKind, Move, after_failure, describe, when_due
from holdfast.model.event import Event
from holdfast.model.job import Burial, Job, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.states import LIVE, NEXT, State, Verb, follows

FAILURE = describe("no")


def job(attempt: int) -> Job:
    return Job("1", "orders", "billing", Event(1, "a"), "p", attempt, 0, 1, datetime.now(UTC))


def due(kind: DueKind, **changes: int | bool) -> Due:
    values = {"attempts": 1, "abandonments": 0, "expired": False, "max_attempts": 5, "max_abandonments": 3}
    return Due(kind, (1, 2), 1, worker="w", **(values | changes))  # type: ignore[arg-type]


def test_a_failure_is_retried_while_the_budget_lasts() -> None:
    policy = Policy.of(max_attempts=3, backoff=["1s", "10s"])
    chance = random.Random(0)
    waits = []
    for attempt in (1, 2):
        verdict = after_failure(job(attempt), policy, FAILURE, terminal=False, chance=chance)
        assert isinstance(verdict, Retry)
        assert verdict.failure is FAILURE
        waits.append(verdict.delay)
    assert waits == [timedelta(seconds=1), timedelta(seconds=10)]
    last = after_failure(job(3), policy, FAILURE, terminal=False, chance=chance)
    assert isinstance(last, Burial)
    assert (last.reason, last.failure) == (Reason.MAX_ATTEMPTS, FAILURE)


@given(st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_a_failed_attempt_is_dead_exactly_when_it_is_terminal_or_the_last(
    attempt: int, most: int, terminal: bool
) -> None:
    policy = Policy.of(max_attempts=most)
    verdict = after_failure(job(attempt), policy, FAILURE, terminal=terminal, chance=random.Random(0))
    assert isinstance(verdict, Burial) == (terminal or attempt >= most)
    if isinstance(verdict, Burial):
        assert verdict.reason is (Reason.TERMINAL if terminal else Reason.MAX_ATTEMPTS)


def test_what_is_due_is_promoted_and_what_expired_is_buried() -> None:
    assert when_due(due(DueKind.SCHEDULE)).move is Move.PROMOTE
    expired = when_due(due(DueKind.EXPIRY))
    assert (expired.move, expired.reason) == (Move.BURY, Reason.EXPIRED)
    assert expired.failure is not None


@given(st.integers(1, 20), st.integers(0, 20), st.booleans(), st.integers(1, 20), st.integers(1, 20))
def test_an_ended_lease_is_judged_by_every_rule(
    attempts: int, abandonments: int, expired: bool, max_attempts: int, max_abandonments: int
) -> None:
    action = when_due(
        due(
            DueKind.LEASE,
            attempts=attempts,
            abandonments=abandonments,
            expired=expired,
            max_attempts=max_attempts,
            max_abandonments=max_abandonments,
        )
    )
    dead = [
        (Reason.CRASH_LOOP, abandonments + 1 >= max_abandonments),  # this one counts
        (Reason.MAX_ATTEMPTS, attempts - 1 >= max_attempts),  # this one is given back
        (Reason.EXPIRED, expired),
    ]
    reasons = [reason for reason, holds in dead if holds]
    assert action.move is (Move.BURY if reasons else Move.ABANDON)
    assert action.reason is (reasons[0] if reasons else None)
    assert action.failure is not None
    assert "w" in action.failure.error


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 10))
def test_max_runs_bounds_failures_and_abandonments_together(
    attempts: int, abandonments: int, max_runs: int
) -> None:
    spent = attempts + abandonments >= max_runs
    lease = due(
        DueKind.LEASE,
        attempts=attempts,
        abandonments=abandonments,
        max_attempts=99,
        max_abandonments=99,
        max_runs=max_runs,
    )
    assert when_due(lease).reason is (Reason.CRASH_LOOP if spent else None)
    held = replace(job(attempts), abandonments=abandonments)
    policy = Policy.of(max_attempts=99, max_runs=max_runs)
    verdict = after_failure(held, policy, FAILURE, terminal=False, chance=random.Random(1))
    assert isinstance(verdict, Burial) == spent


def test_an_error_is_described_with_its_kind_and_fingerprint() -> None:
    failure = describe(ValueError("order 17"))
    assert failure == ("order 17", "ValueError", fingerprint("ValueError", "order 17"))
    assert describe("just text").kind == ""
    assert describe(ValueError()).error == "ValueError", "an empty message still says something"


@given(st.text() | st.builds(RuntimeError, st.text()) | st.builds(KeyError, st.binary()))
def test_every_description_can_be_stored(error: BaseException | str) -> None:
    failure = describe(error)
    assert len(failure.error) <= MAX_ERROR
    assert "\x00" not in failure.error
    assert failure.error.encode().decode() == failure.error
    assert failure.error


def test_a_long_error_is_cut() -> None:
    assert len(describe("x" * 10_000).error) == MAX_ERROR


class Sulking(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


def test_an_error_that_cannot_be_printed_is_described_all_the_same() -> None:
    # A handler may raise anything, and the worker must outlive it.
    failure = describe(Sulking())
    assert failure.kind == "Sulking"
    assert failure.error


def test_terminal_states_lead_nowhere_and_only_a_lease_leads_to_done() -> None:
    assert set(NEXT) == set(State)
    assert {state for state, verbs in NEXT.items() if not verbs} == set(State) - LIVE - {State.DEAD}
    assert [state for state in State if State.DONE in NEXT[state].values()] == [State.LEASED]


def test_a_policy_that_keeps_no_dead_letters_discards_instead() -> None:
    assert follows(State.LEASED, Verb.BURY) is State.DEAD
    assert follows(State.LEASED, Verb.BURY, discards=True) is State.DISCARDED
    assert follows(State.LEASED, Verb.COMPLETE, discards=True) is State.DONE
    assert follows(State.DONE, Verb.BURY, discards=True) is None
