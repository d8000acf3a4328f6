"""A defect of claims that once was, put back into a copy of the package: a run without faults finds it."""

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
LEASES = Path("backends/postgres/sql/leases.sql")
OUTER_JOIN = (
    "), %(worker)s, %(limit)s) j\nORDER BY",
    """), %(worker)s, %(limit)s) j
CROSS JOIN LATERAL (
    SELECT FROM holdfast.log l
    WHERE l.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
      AND l.epoch = j.epoch AND l.seq = j.seq OFFSET 0
) e
ORDER BY""",
)
"""A claim of an ordered consumer looks for the event under a snapshot that is older than the lease."""
TRIES, MINUTES = 3, "0.4"
"""It is a race: one run may pass over it."""


def broken_by(defect: tuple[str, str], folder: Path) -> set[str]:
    """The invariants that a run of the package with this defect finds broken on PostgreSQL."""
    package = folder / "src" / "holdfast"
    shutil.copytree(Path(holdfast.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (package / LEASES).read_text()
    assert text.count(defect[0]) == 1
    (package / LEASES).write_text(text.replace(*defect))
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
        found |= broken_by(OUTER_JOIN, tmp_path / str(turn))
        if "I18" in found:
            return
    pytest.fail(f"{TRIES} runs found {found or 'nothing'} broken, and not I18")
