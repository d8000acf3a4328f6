"""The rig, short: everybody at work on each store under kills, pauses, noise and restarts of the server."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest

from holdfast_chaos.checks.stalls import LIMIT
from holdfast_chaos.report import Report
from holdfast_chaos.roles import STORES
from holdfast_chaos.run import run
from holdfast_chaos.store_run import Plan

pytestmark = pytest.mark.timeout(300)
SEED = 20261115
MEMORY, ENOUGH, LONG = "/dev/shm", 4 << 30, 60  # noqa: S108 - the servers' folders in it are private
SHORT = frozenset({"kill", "pause", "noise", "clock", "server"})
APP = """
import holdfast

app = holdfast.App()


@app.handler("invoices", "ledger", max_attempts=3)
async def book(event: holdfast.Event) -> None:
    if event.json()["amount"] < 0:
        raise holdfast.Terminal("no such amount")
"""


def explained(report: Report) -> str:
    """What is wrong, for whoever reads the failure."""
    return json.dumps([summary.to_json() for summary in report.summaries], indent=1, default=str)


# It is over with the last kill; the time is only a limit, for a slow machine.
@pytest.mark.parametrize(
    ("kills", "servers", "store"),
    [
        (4, 1, "postgres"),
        *(pytest.param(4, 1, store, marks=pytest.mark.slow) for store in ("redis", "nats")),
        *(pytest.param(24, 3, store, marks=pytest.mark.slow) for store in STORES),
    ],
)
async def test_nothing_is_lost_or_doubled_while_everything_is_killed(
    store: str, kills: int, servers: int, tmp_path: Path
) -> None:
    plan = Plan(SEED, SHORT, seconds=150, kills=kills, server_kills=servers)
    report = await run([store], plan, tmp_path, tell=lambda _: None)
    [summary] = report.summaries
    assert report.holds, explained(report)
    assert summary.killed >= kills
    assert summary.server_kills >= servers
    assert summary.events > 0
    assert summary.archived == summary.ingested + summary.failed > 0
    assert report.bound == 3 / (report.kills + report.server_kills)


# Of a slow machine a second counts for less, and one that stands still excuses the store: see the timeline.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("store", "seconds"),
    [
        ("postgres", 8),
        ("redis", 8),
        pytest.param("nats", 20, marks=pytest.mark.slow),
        *(pytest.param(store, 300, marks=pytest.mark.slow) for store in STORES),
    ],
)
async def test_without_a_fault_nothing_comes_twice_stalls_or_fails(
    store: str, seconds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ENOUGH:
        monkeypatch.setattr(tempfile, "tempdir", MEMORY)  # nobody is killed, so nothing need be on a disk
    plan = Plan(SEED, frozenset(), seconds, pipeline=seconds > LONG)
    report = await run([store], plan, tmp_path, tell=lambda _: None)
    [summary] = report.summaries
    assert report.holds, explained(report)
    assert summary.claims > summary.events > 0
    assert {"cancel", "requeue", "pause", "resume", "subscribe", "remove"} <= summary.operations.keys()
    assert summary.longest_wait < LIMIT


@pytest.mark.slow
async def test_the_handlers_of_a_user_are_besieged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_under_siege.py").write_text(APP)
    samples = tmp_path / "invoices.jsonl"
    samples.write_text('{"amount": 3}\n{"amount": -1}\n')
    monkeypatch.syspath_prepend(tmp_path)
    app = "shop_under_siege"
    plan = Plan(SEED, frozenset({"kill"}), 150, kills=2, pipeline=False, app=app, samples=samples)
    report = await run(["redis"], plan, tmp_path / "kept", tell=lambda _: None)
    [summary] = report.summaries
    assert report.holds, explained(report)
    assert summary.states["done"] > 0
    assert summary.states["dead"] + summary.states["purged"] > 0
