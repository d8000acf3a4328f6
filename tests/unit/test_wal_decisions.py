"""The loader's decisions: when to try, when to wait, when to give up, and which rows are to blame."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import InvalidInput, Terminal
from holdfast.pipeline.loader.decisions import GiveUp, Load, Wait, backoff, decide, isolate
from holdfast.pipeline.wal.records import Attempt
from holdfast.pipeline.wal.settings import WalSettings

NOW = datetime(2026, 3, 1, tzinfo=UTC)
SETTINGS = WalSettings()
SECOND = timedelta(seconds=1)


def failed(retry_in: timedelta) -> Attempt:
    return Attempt(1, "a", NOW, NOW + retry_in, "boom", transient=True)


def test_a_fresh_batch_is_loaded() -> None:
    assert decide(NOW, NOW, 0, None, SETTINGS) == Load()


def test_after_a_failure_it_waits_until_its_time() -> None:
    assert decide(NOW, NOW, 1, failed(SECOND), SETTINGS) == Wait(NOW + SECOND)
    assert decide(NOW + SECOND, NOW, 1, failed(SECOND), SETTINGS) == Load()


def test_it_expires_after_its_time_to_live_and_not_before() -> None:
    old = NOW - timedelta(hours=168)
    assert decide(NOW, old, 0, None, SETTINGS) == GiveUp("expired")
    assert decide(NOW - SECOND, old, 0, None, SETTINGS) == Load()


def test_it_has_a_hundred_attempts_and_those_that_nobody_ended_count() -> None:
    assert decide(NOW, NOW, 99, None, SETTINGS) == Load()
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


def test_knobs_come_from_the_environment_under_their_old_names() -> None:
    environ = {
        "CONSUMER_WAL_PATH": "s3://bucket/wal",
        "CONSUMER_WAL_RETRY_INTERVAL": "10s",
        "CONSUMER_WAL_MAX_RETRIES": "7",
        "CONSUMER_WAL_RETRY_BACKOFF": "2s",
        "CONSUMER_WAL_ENTRY_TTL": "24h",
        "CONSUMER_WAL_CLOSE_TIMEOUT": "5s",
        "CONSUMER_WAL_LEASE_DURATION": "3m",
    }
    found = WalSettings.of(environ, max_retries=3, max_bytes=5)
    assert (found.path, found.max_retries, found.max_bytes) == ("s3://bucket/wal", 7, 5)
    assert (found.retry_interval, found.retry_backoff) == (10 * SECOND, 2 * SECOND)
    assert (found.entry_ttl, found.close_timeout) == (timedelta(hours=24), 5 * SECOND)
    assert found.lease_duration == timedelta(minutes=3)


@pytest.mark.parametrize(
    "environ",
    [
        {"CONSUMER_WAL_LEASE_DURATION": "29s"},
        {"CONSUMER_WAL_MAX_RETRIES": "many"},
        {"CONSUMER_WAL_MAX_RETRIES": "0"},
        {"CONSUMER_WAL_RETRY_BACKOFF": "10m"},
        {"CONSUMER_WAL_ENTRY_TTL": "soon"},
    ],
)
def test_knobs_that_make_no_sense_are_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        WalSettings.of(environ)
