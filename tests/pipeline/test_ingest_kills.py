"""Real drivers on Spark, and processes that Spark started for them, killed; the next driver makes it good."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast_chaos.checks.pipeline import check_ingest
from holdfast_chaos.scenario import HELPER_POINTS, SPARK_POINTS, IngestScenario

pytestmark = pytest.mark.timeout(600)
# The point that only a driver on Spark has is enough for a usual run: test_wal_kills.py has the others.
STORES = [
    pytest.param("database", "wal.after_pending", id="postgres", marks=pytest.mark.slow),
    pytest.param("empty_redis", "driver.after_batch", id="redis"),
    pytest.param("empty_nats", "loader.after_commit", id="nats", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("store", "point"), STORES)
def test_a_killed_driver_loses_and_doubles_nothing(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, point: str
) -> None:
    trial = IngestScenario(request.getfixturevalue(store), tmp_path)
    trial.publish(30)
    assert trial.drive_spark(point) == -signal.SIGKILL
    assert check_ingest(trial.history, trial.state(), drained=False) == []
    trial.publish(10)
    assert trial.drive() == 0
    assert check_ingest(trial.history, trial.state(), drained=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["duckdb", "delta"])
def test_drivers_killed_at_every_step_in_turn_lose_and_double_nothing(
    database: str, tmp_path: Path, kind: str
) -> None:
    trial = IngestScenario(database, tmp_path, kind)
    for point in [*SPARK_POINTS, *HELPER_POINTS]:
        trial.publish(20)
        assert trial.drive_spark(point) == -signal.SIGKILL, point
        assert check_ingest(trial.history, trial.state(), drained=False) == [], point
    assert trial.drive_spark() == 0
    assert check_ingest(trial.history, trial.state(), drained=True) == []
