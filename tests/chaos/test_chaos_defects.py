"""A defect of the take-up in a copy of the package: a run without faults finds it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
FRONTIERS = Path("backends/postgres/migrations/0004_frontiers.sql")
NO_RUNNING = (
    "f.passed := f.reach;",
    "f.passed := format('%1$s:%1$s:', pg_snapshot_xmax(f.reach))::pg_snapshot;",
)
"""A frontier forgets which publishes were not committed when its window ended."""
TRIES, MINUTES = 3, "0.4"
"""It is a race: one run may pass over it."""


def broken_by(defect: tuple[str, str], folder: Path) -> set[str]:
    """The invariants that a run of the package with this defect finds broken on PostgreSQL."""
    package = folder / "src" / "holdfast"
    shutil.copytree(Path(holdfast.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / FRONTIERS).read_text()
    assert text.count(defect[0]) == 1
    (package / FRONTIERS).write_text(text.replace(*defect))
    command = [sys.executable, "-m", "holdfast.cli", "chaos", "run", "--backend", "postgres", "--json"]
    done = subprocess.run(
        [*command, "--faults", "none", "--no-pipeline", "--minutes", MINUTES],
        env=os.environ | {"PYTHONPATH": str(package.parent)},
        stdout=subprocess.PIPE,
    )
    report = json.loads(done.stdout)
    return {each["invariant"] for store in report["stores"] for each in store["violations"]}


def test_a_run_without_faults_finds_the_defect(tmp_path: Path) -> None:
    found: set[str] = set()
    for turn in range(TRIES):
        found |= broken_by(NO_RUNNING, tmp_path / str(turn))
        if "I1" in found:
            return
    pytest.fail(f"{TRIES} runs found {found or 'nothing'} broken, and not I1")
