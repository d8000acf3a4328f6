"""SIGKILL at every step of source, commit and loader, then recovery: I9, I10, I11 from the files themselves.

`make chaos-ingest` does the same at length, on all stores and with Spark; see tests/chaos/ingest.py.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.chaos.judge.ingest import doubled, judge
from holdfast.chaos.trial import POINTS, Trial


@pytest.mark.parametrize("kind", ["duckdb", pytest.param("delta", marks=pytest.mark.slow)])
def test_a_kill_at_every_step_in_turn_loses_and_doubles_nothing(
    database: str, tmp_path: Path, kind: str
) -> None:
    trial = Trial(database, tmp_path, kind)
    for point in POINTS:
        trial.publish(8)
        assert trial.drive(kill=point) == -signal.SIGKILL, point
        assert judge(trial.history, trial.evidence(), drained=False) == [], point
    assert trial.drive() == 0
    assert judge(trial.history, trial.evidence(), drained=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_step_of_any_batch(database: str, tmp_path: Path, point: str, skip: int) -> None:
    trial = Trial(database, tmp_path)
    trial.publish(40)
    for _ in range(2):
        assert trial.drive(kill=point, skip=skip) in (-signal.SIGKILL, 0)
        assert judge(trial.history, trial.evidence(), drained=False) == []
    assert trial.drive() == 0
    assert judge(trial.history, trial.evidence(), drained=True) == []


@pytest.mark.parametrize("counted", [False, True])
def test_counted_ids_would_double_what_is_staged_twice(database: str, tmp_path: Path, counted: bool) -> None:
    """The positive control. A driver dies after the commit; the next one starts at the cursor, over a batch
    that is pending, and stages the same events again: with the seed's ids they are others each time."""
    trial = Trial(database, tmp_path)
    trial.publish(3)
    assert trial.drive(kill="wal.after_pending", counted=counted) == -signal.SIGKILL
    trial.publish(3)
    assert trial.drive(counted=counted, follow=False) == 0
    found = trial.evidence()
    assert set(doubled(found)) == ({"o-1", "o-2", "o-3"} if counted else set())
    broken = {violation.invariant for violation in judge(trial.history, found, drained=True)}
    assert broken == ({"I10"} if counted else set())
