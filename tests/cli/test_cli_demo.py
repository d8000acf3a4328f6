"""`holdfast demo`: it runs, it loses nothing, and it would tell if it did."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.demo.audit import Expected, audit
from holdfast.cli.demo.processes import DemoProcesses
from holdfast.model.errors import HoldfastError


def demo(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """What it reports, and what it says meanwhile."""
    # A store in the environment is somebody's: the demo leaves it alone.
    environment = os.environ | {"HOLDFAST_URL": "postgresql://127.0.0.1:1/untouched"}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "demo", "--seconds", "5", "--json", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def steps(said: str) -> int:
    return len([line for line in said.splitlines() if line.strip()[:1].isdigit()])


def test_nothing_is_lost(tmp_path: Path) -> None:
    report, said = demo(tmp_path, "--no-pipeline")
    assert (report["lost"], report["unfinished"], report["books"]) == (0, 0, [])
    assert report["published"] == report["completed"] + report["dead"] > 1000
    assert set(report["dead_by_reason"]) == {"crash_loop", "max_attempts", "terminal"}
    counted = ("duplicates_refused", "conflicts_refused", "stale_answers_refused", "retried", "abandoned")
    assert all(report[name] > 0 for name in counted)
    assert steps(said) == 12
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_its_books_are_equal(tmp_path: Path) -> None:
    report, said = demo(tmp_path)
    assert (report["lost"], report["unfinished"], steps(said)) == (0, 0, 16)
    for books in report["books"]:
        assert books["equal"]
        assert books["published"] == books["archived"] == books["ingested"] + books["failed"]
    assert sum(books["published"] for books in report["books"]) == report["published"]
    kept = {path.name for path in (tmp_path / ".holdfast" / "demo").iterdir()}
    assert kept >= {"archive", "wal", "warehouse.duckdb"}


async def test_the_audit_finds_what_is_lost_or_left_over(database: str) -> None:
    expected = Expected()
    async with holdfast.connect(database) as hf:
        await hf.subscribe("orders", "billing")
        expected.note("orders", await hf.publish_many("orders", [holdfast.Event(n) for n in range(3)]))
        expected.acknowledged["orders", "never-stored"] = "somewhere"
        [job] = await hf.poll("orders", "billing")
        await hf.finalize(job, success=True)
        result = await audit(hf, expected)
    assert (result.published, result.completed, result.unfinished, result.lost) == (4, 1, 2, 1)
    assert not result.ok


def test_a_driver_that_fails_is_shown_with_the_end_of_its_log(tmp_path: Path) -> None:
    """It is not the worker's log, nor that of a process before it."""

    async def play() -> HoldfastError:
        async with DemoProcesses("postgresql://127.0.0.1:1/nowhere", "orders") as processes:
            other = await processes.run(["archive", "--no-such-option"])
            driver = await processes.run(
                ["archive", "--once", "--stream", "not..a.pattern", "--destination", "x"]
            )
            await asyncio.gather(other.wait(), driver.wait())
            return processes.failure(driver, "driver", " instead of being killed")

    with redirect_stderr(StringIO()) as told:
        error = asyncio.run(play())
    assert "ended with 2 instead of being killed; the last lines of its log stand above" in str(error)
    assert "not..a.pattern" in told.getvalue()
    assert "no-such-option" not in told.getvalue()
