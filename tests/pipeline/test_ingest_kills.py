"""Real drivers, killed: `holdfast ingest --once` dies at a failpoint, and the next one makes it good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import holdfast
from holdfast.failpoints import VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
DRIVER = ["wal.after_pending", "wal.after_cursor", "loader.after_commit"]


def drive(url: str, folder: Path, failpoint: str = "") -> tuple[int, Any]:
    """One driver in a process of its own; answers how it ended, and what it said."""
    command = ["ingest", "--once", "--json", "--channel", "orders", "--url", url, "--master", "local[2]"]
    where = ["--wal", "wal", "--warehouse", "duckdb://warehouse.duckdb", "--checkpoints", "checkpoints"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", *command, *where],
        cwd=folder,
        env=os.environ | {VARIABLE: failpoint, "CONSUMER_WAL_LEASE_DURATION": "30s"},
        stdout=subprocess.PIPE,
        text=True,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None


def publish(url: str, first: int, last: int) -> None:
    with holdfast.connect_sync(url) as bus:
        bus.publish_many("orders", [holdfast.Event({"total": n}, f"o-{n}") for n in range(first, last + 1)])


def loaded(folder: Path) -> list[int]:
    with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as connection:
        return sorted(int(row[0][2:]) for row in connection.execute("SELECT id FROM events").fetchall())


@pytest.mark.parametrize("point", DRIVER)
def test_a_killed_driver_loses_and_doubles_nothing(store: str, tmp_path: Path, point: str) -> None:
    publish(store, 1, 50)
    code, _ = drive(store, tmp_path, f"{point}=kill")
    assert code < 0
    publish(store, 51, 60)
    code, summary = drive(store, tmp_path)
    assert code == 0
    assert summary["left"] == 0
    assert loaded(tmp_path) == list(range(1, 61))


def test_a_killed_executor_fails_the_batch_and_leaves_it_to_be_read_again(
    database: str, tmp_path: Path
) -> None:
    publish(database, 1, 50)
    code, _ = drive(database, tmp_path, "wal.after_stage=kill")
    assert code == 1, "with one machine there is no second try"
    assert not list((tmp_path / "wal").glob("pending/*"))
    code, summary = drive(database, tmp_path)
    assert (code, summary["written"]) == (0, 50)
    assert loaded(tmp_path) == list(range(1, 51))
