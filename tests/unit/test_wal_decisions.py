"""The loader's decisions: when to try, when to wait, when to give up, and which rows are to blame."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput, Terminal
from holdfast.pipeline.loader.decisions import GiveUp, TryLater, TryNow, backoff, decide, isolate
from holdfast.pipeline.wal.log import WalSettings
from holdfast.pipeline.wal.records import Attempt

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = WalSettings()
SECOND = timedelta(seconds=1)


def failed(retry_in: timedelta) -> Attempt:
    return Attempt(1, "a", NOW, NOW + retry_in, "boom", transient=True)


def test_a_fresh_batch_is_loaded() -> None:
    assert decide(NOW, NOW, 0, None, SETTINGS) == TryNow()


def test_after_a_failure_it_waits_until_its_time() -> None:
    assert decide(NOW, NOW, 1, failed(SECOND), SETTINGS) == TryLater(NOW + SECOND)
    assert decide(NOW + SECOND, NOW, 1, failed(SECOND), SETTINGS) == TryNow()


def test_it_expires_after_its_time_to_live_and_not_before() -> None:
    old = NOW - timedelta(hours=168)
    assert decide(NOW, old, 0, None, SETTINGS) == GiveUp("expired")
    assert decide(NOW - SECOND, old, 0, None, SETTINGS) == TryNow()


def test_it_has_a_hundred_attempts_and_those_that_nobody_ended_count() -> None:
    assert decide(NOW, NOW, 99, None, SETTINGS) == TryNow()
    assert decide(NOW, NOW, 100, None, SETTINGS) == GiveUp("max_retries_exceeded")


@given(st.integers(1, 200), st.floats(0, 1))
def test_waits_double_from_five_seconds_to_five_minutes(attempt: int, chance: float) -> None:
    wait = backoff(attempt, SETTINGS, chance)
    assert timedelta(seconds=5) <= wait <= timedelta(minutes=5)
    assert backoff(attempt + 1, SETTINGS, 0.5) >= backoff(attempt, SETTINGS, 0.5)


def test_waits_are_spread() -> None:
    assert backoff(3, SETTINGS, 0.0) == timedelta(seconds=15)
    assert backoff(3, SETTINGS, 0.5) == timedelta(seconds=20)
    assert backoff(3, SETTINGS, 1.0) == timedelta(seconds=25)


@given(st.integers(1, 300), st.sets(st.integers(0, 299), min_size=1, max_size=6))
def test_exactly_the_poison_is_found(size: int, poison: set[int]) -> None:
    poison = {each % size for each in poison}
    tried = 0

    def rehearse(rows: pa.Table) -> None:
        nonlocal tried
        tried += 1
        bad = poison.intersection(rows["n"].to_pylist())
        if bad:
            raise Terminal(f"{min(bad)}")

    found = isolate(pa.table({"n": list(range(size))}), Terminal(str(min(poison))), rehearse)
    assert {row["n"][0].as_py(): str(error) for row, error in found} == {each: str(each) for each in poison}
    assert tried <= 2 * len(poison) * (size.bit_length() + 1)


@pytest.mark.parametrize(
    "knobs",
    [
        {"lease_duration": 29 * SECOND},
        {"max_retries": 0},
        {"max_bytes": 0},
        {"retry_backoff": timedelta(minutes=10)},
    ],
)
def test_knobs_that_make_no_sense_are_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        WalSettings(**knobs)
