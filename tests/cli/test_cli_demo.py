"""`holdfast demo`: it runs, it loses nothing, and it would tell if it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.demo.audit import audit
from holdfast.cli.demo.record import Record


@pytest.mark.timeout(300)
def test_nothing_is_lost(tmp_path: Path) -> None:
    # A store in the environment is somebody's: the demo leaves it alone.
    environment = os.environ | {"HOLDFAST_URL": "postgresql://127.0.0.1:1/untouched"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "--seconds", "5", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["lost"], report["unfinished"]) == (0, 0)
    assert report["published"] == report["completed"] + report["dead"] > 1000
    assert set(report["dead_by_reason"]) == {"crash_loop", "max_attempts", "terminal"}
    counted = ("duplicates_refused", "conflicts_refused", "stale_answers_refused", "retried", "abandoned")
    assert all(report[name] > 0 for name in counted)
    steps = [line for line in done.stderr.splitlines() if line.strip()[:1].isdigit()]
    assert len(steps) == 16
    for books in report["books"]:
        assert books["equal"]
        assert books["published"] == books["archived"] == books["ingested"] + books["failed"]
    assert sum(books["published"] for books in report["books"]) == report["published"]
    kept = {path.name for path in (tmp_path / ".holdfast" / "demo").iterdir()}
    assert kept >= {"archive", "wal", "warehouse.duckdb"}


@pytest.mark.slow
def test_without_the_pipeline_it_leaves_nothing_behind(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "--seconds", "5", "--no-pipeline", "--json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["books"] == []
    assert list(tmp_path.iterdir()) == []


async def test_the_audit_finds_what_is_lost_or_left_over(database: str) -> None:
    record = Record()
    async with holdfast.connect(database) as hf:
        await hf.subscribe("orders", "billing")
        record.note("orders", await hf.publish_many("orders", [holdfast.Event(n) for n in range(3)]))
        record.acknowledged["orders", "never-stored"] = "somewhere"
        [job] = await hf.poll("orders", "billing")
        await hf.finalize(job, success=True)
        tally = await audit(hf, record)
    assert (tally.published, tally.completed, tally.unfinished, tally.lost) == (4, 1, 2, 1)
    assert not tally.ok
