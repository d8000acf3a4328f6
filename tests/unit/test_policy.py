"""Policies: what people write, what is refused, and how long a retry waits."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.backoff import Exponential, Steps
from holdfast.model.errors import InvalidPolicy
from holdfast.model.policy import UNLIMITED, Policy

spans = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=3650))
exponentials = st.builds(
    lambda base, more, factor, jitter: Exponential(base, factor, base + more, jitter),
    spans,
    spans,
    st.floats(1, 1e6, allow_nan=False),
    st.floats(0, 1),
)
policies = st.builds(
    Policy.of,
    max_attempts=st.one_of(st.integers(1, 10_000), st.just("unlimited")),
    max_abandonments=st.integers(1, 10_000),
    lease=st.timedeltas(min_value=timedelta(milliseconds=100), max_value=timedelta(days=365)),
    backoff=st.one_of(st.none(), exponentials, st.lists(spans, min_size=1, max_size=5), spans),
    expires_after=st.one_of(
        st.none(), st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=365))
    ),
    dead_letter=st.one_of(st.none(), st.just("orders.dead")),
    ordered=st.booleans(),
    max_depth=st.one_of(st.none(), st.integers(1, 2**53)),
    max_runs=st.one_of(st.none(), st.integers(1, 10_000)),
)


def test_the_defaults_are_those_of_the_seeds() -> None:
    policy = Policy.of()
    assert (policy.max_attempts, policy.max_abandonments) == (5, 3)
    assert policy.lease == timedelta(minutes=5)
    assert policy.backoff == Exponential()
    assert (policy.expires_after, policy.dead_letter, policy.on_dead) == (None, None, "keep")
    assert (policy.ordered, policy.max_depth) == (False, None)
    assert policy == Policy()


def test_a_policy_is_what_people_write() -> None:
    policy = Policy.of(lease="30s", backoff=["1s", "10s"], expires_after="7d", on_dead="discard")
    assert policy.lease == timedelta(seconds=30)
    assert policy.backoff == Steps((timedelta(seconds=1), timedelta(seconds=10)))
    assert policy.expires_after == timedelta(days=7)
    assert Policy.of(backoff="5s").backoff == Steps((timedelta(seconds=5),))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_attempts": 0}, "max_attempts 0"),
        ({"max_attempts": True}, "max_attempts True"),
        ({"max_attempts": "5"}, "max_attempts '5'"),
        ({"max_abandonments": 10_001}, "max_abandonments 10001"),
        ({"lease": "99ms"}, "99ms"),
        ({"lease": "soon"}, "'soon'"),
        ({"lease": "-5m"}, "'-5m'"),
        ({"backoff": []}, "backoff []"),
        ({"backoff": ["1s", "later"]}, "'later'"),
        ({"backoff": {"base": 1}}, "{'base': 1}"),
        ({"backoff": Exponential(factor=0.5)}, "factor=0.5"),
        ({"backoff": Exponential(jitter=1.5)}, "jitter=1.5"),
        ({"backoff": Exponential(jitter=float("nan"))}, "jitter=nan"),
        ({"backoff": Exponential(factor=float("nan"))}, "factor=nan"),
        ({"backoff": Exponential(factor=float("inf"))}, "factor=inf"),
        ({"backoff": Exponential(base=timedelta(hours=2))}, "base"),
        ({"backoff": Exponential(base=timedelta(seconds=-1))}, "base"),
        ({"expires_after": "0s"}, "expires_after"),
        ({"dead_letter": "Bad Name"}, "'Bad Name'"),
        ({"on_dead": "forget"}, "'forget'"),
        ({"on_dead": "discard", "dead_letter": "d"}, "contradict"),
        ({"max_depth": 0}, "max_depth 0"),
        ({"max_depth": 1.5}, "max_depth 1.5"),
        ({"max_depth": 2**53 + 1}, "max_depth"),
    ],
)
def test_mistakes_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        Policy.of(**options)
    assert named in str(caught.value)


@given(policies)
def test_a_stored_policy_is_the_same_policy(policy: Policy) -> None:
    assert Policy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


@given(policies, st.integers(1, 10_000), st.integers())
def test_every_accepted_policy_can_wait(policy: Policy, attempt: int, seed: int) -> None:
    delay = policy.backoff.delay(attempt, random.Random(seed))
    longest = policy.backoff.limit if isinstance(policy.backoff, Exponential) else max(policy.backoff.waits)
    assert timedelta(0) <= delay <= longest


def test_the_waits_of_a_list_are_exact_and_the_last_repeats() -> None:
    backoff = Policy.of(backoff=["1s", "10s", "1m"]).backoff
    waits = [backoff.delay(attempt, random.Random(0)).total_seconds() for attempt in (1, 2, 3, 4, 100)]
    assert waits == [1, 10, 60, 60, 60]


def test_exponential_waits_grow_up_to_the_limit() -> None:
    backoff = Exponential(timedelta(seconds=1), 2.0, timedelta(minutes=1), jitter=0)
    waits = [backoff.delay(attempt, random.Random(0)).total_seconds() for attempt in range(1, 9)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_jitter_spreads_around_the_wait() -> None:
    backoff, chance = Exponential(timedelta(seconds=100), jitter=0.2), random.Random(1)
    waits = [backoff.delay(1, chance).total_seconds() for _ in range(500)]
    assert 80 <= min(waits) < 85
    assert 115 < max(waits) <= 120


def test_attempts_can_be_unlimited() -> None:
    policy = Policy.of(max_attempts="unlimited")
    assert policy.max_attempts == UNLIMITED
    assert policy.to_json()["max_attempts"] == "unlimited"
    assert policy.stored()["max_attempts"] == UNLIMITED
    assert Policy.from_json(policy.to_json()) == Policy.from_json(policy.stored()) == policy


@pytest.mark.parametrize(
    "given",
    [
        {"max_attempts": "many"},
        {"max_attempts": "5"},
        {"max_attempts": 10_001},
        {"max_abandonments": "unlimited"},
    ],
)
def test_other_budgets_have_an_end(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidPolicy, match="whole number from 1 to 10000"):
        Policy.of(**given)


@pytest.mark.parametrize("attempt", [1_000, 32_768, 2**31, 2**62])
def test_a_wait_after_very_many_attempts_is_the_longest_one(attempt: int) -> None:
    chance, limit = random.Random(7), timedelta(hours=1)
    assert Exponential(jitter=0).delay(attempt, chance) == limit
    assert Exponential(factor=1.0, jitter=0).delay(attempt, chance) == timedelta(seconds=1)
    assert Exponential(base=timedelta(0), jitter=0).delay(attempt, chance) == timedelta(0)
    assert Steps((timedelta(0), limit)).delay(attempt, chance) == limit
