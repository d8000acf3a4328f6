"""SIGKILL at every step of source, commit and loader, then recovery: I9, I10, I11 from the files themselves.

`make chaos-ingest` does the same at length, on all stores and with Spark; see tests/chaos/ingest.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast_chaos.checks.pipeline import check_ingest
from holdfast_chaos.scenario import POINTS, IngestScenario


@pytest.mark.parametrize("kind", ["duckdb", pytest.param("delta", marks=pytest.mark.slow)])
def test_a_kill_at_every_step_in_turn_loses_and_doubles_nothing(
    database: str, tmp_path: Path, kind: str
) -> None:
    trial = IngestScenario(database, tmp_path, kind)
    for point in POINTS:
        trial.publish(8)
        assert trial.drive(kill=point) == -signal.SIGKILL, point
        assert check_ingest(trial.history, trial.state(), drained=False) == [], point
    assert trial.drive() == 0
    assert check_ingest(trial.history, trial.state(), drained=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_of_any_batch(database: str, tmp_path: Path, point: str, skip: int) -> None:
    trial = IngestScenario(database, tmp_path)
    trial.publish(40)
    for _ in range(2):
        assert trial.drive(kill=point, skip=skip) in (-signal.SIGKILL, 0)
        assert check_ingest(trial.history, trial.state(), drained=False) == []
    assert trial.drive() == 0
    assert check_ingest(trial.history, trial.state(), drained=True) == []
