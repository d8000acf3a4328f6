"""`holdfast worker`: real processes, and the signals they get."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from shell import Run, Start

from holdfast.bus.sync import SyncBus

APP = """
import asyncio
from pathlib import Path
import holdfast

app, empty, number = holdfast.App(), holdfast.App(), 7

@app.handler("orders", "billing", lease="30s", concurrency=1)
async def bill(event):
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    print(event.id, flush=True)
"""

BLOCKED = """
import asyncio, threading
from pathlib import Path
import holdfast

app = holdfast.App()

@app.handler("orders", "billing", lease="30s", concurrency=1)
async def bill(event):
    Path("begun").touch()
    await asyncio.to_thread(threading.Event().wait)
"""

LOUD = """
import logging, holdfast

app = holdfast.App()

@app.handler("orders", "billing", lease="30s", concurrency=1)
def bill(event):
    logging.getLogger("loud").warning("one\\ntwo %s", event.id)
"""


@pytest.fixture(autouse=True)
def _app(tmp_path: Path, hf: SyncBus) -> None:
    (tmp_path / "shop.py").write_text(APP)
    hf.subscribe("orders", "billing", lease="30s")
    for name in ("a", "b"):
        hf.publish("orders", 1, id=name)


@pytest.fixture
def worker(start: Start, hf: SyncBus, tmp_path: Path) -> subprocess.Popen[str]:
    """A worker whose handler has begun with a and waits for the file `go`. It has fetched b: whoever sees it
    given back knows that the first signal was heard, since two at once are one."""
    process = start("worker", "shop:app", "--idle", "100ms")
    _until((tmp_path / "begun").exists)
    _until(lambda: _states(hf)["b"][0] == "leased")
    return process


def _until(condition: Callable[[], object], patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def _states(hf: SyncBus) -> dict[str, tuple[str, int]]:
    found = [hf.find_jobs("orders", name)[0] for name in ("a", "b")]
    return {job.event_id: (job.state.value, job.attempts) for job in found}


def test_sigterm_finishes_what_runs_and_gives_the_rest_back(
    worker: subprocess.Popen[str], hf: SyncBus, tmp_path: Path
) -> None:
    worker.send_signal(signal.SIGTERM)
    _until(lambda: _states(hf)["b"] == ("ready", 0))
    assert worker.poll() is None
    (tmp_path / "go").touch()
    out, err = worker.communicate(timeout=60)
    assert (worker.returncode, out) == (0, "a\n")
    assert _states(hf) == {"a": ("done", 1), "b": ("ready", 0)}
    assert [json.loads(line)["message"].split(": ")[1] for line in err.splitlines()] == [
        "orders/billing",
        "drained",
    ]


def test_a_job_that_is_cancelled_meanwhile_makes_room_for_the_next_one(
    worker: subprocess.Popen[str], run: Run, hf: SyncBus, tmp_path: Path
) -> None:
    (tmp_path / "begun").unlink()
    cancelled = run("jobs", "cancel", "orders", "a", "--running", "--by", "ann", "--reason", "no more")
    assert cancelled.err == "1 job of a cancelled\n"
    _until((tmp_path / "begun").exists)  # by b, in its place
    (tmp_path / "go").touch()
    _until(lambda: _states(hf) == {"a": ("cancelled", 1), "b": ("done", 1)})
    worker.send_signal(signal.SIGTERM)
    out, err = worker.communicate(timeout=60)
    assert (worker.returncode, out) == (0, "b\n")
    assert "was cancelled by ann: no more" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_aborts_and_releases(
    worker: subprocess.Popen[str], hf: SyncBus, number: signal.Signals
) -> None:
    worker.send_signal(number)
    _until(lambda: _states(hf)["b"] == ("ready", 0))
    worker.send_signal(number)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "Traceback" not in err
    assert err.endswith("aborted: what ran was released and will run again\n")
    assert _states(hf) == {"a": ("ready", 0), "b": ("ready", 0)}


def test_a_second_signal_ends_a_process_whose_handler_blocks_in_a_thread(
    start: Start, hf: SyncBus, tmp_path: Path
) -> None:
    (tmp_path / "blocked.py").write_text(BLOCKED)
    process = start("worker", "blocked:app", "--idle", "100ms")
    _until((tmp_path / "begun").exists)
    _until(lambda: _states(hf)["b"][0] == "leased")
    process.send_signal(signal.SIGTERM)
    _until(lambda: _states(hf)["b"] == ("ready", 0))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert _states(hf) == {"a": ("ready", 0), "b": ("ready", 0)}


def test_what_outlasts_the_grace_is_released(start: Start, hf: SyncBus, tmp_path: Path) -> None:
    process = start("worker", "shop:app", "--poll-only", "--idle", "100ms", "--grace", "100ms")
    _until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert _states(hf) == {"a": ("ready", 0), "b": ("ready", 0)}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop"], "'shop' names no app"),
        (["nowhere:app"], "no module 'nowhere'"),
        (["broken:app"], "module 'broken' cannot be imported"),
        (["needy:app"], "No module named 'something_missing'"),
        (["shop:number"], "is int, not a holdfast.App"),
        (["shop:missing"], "is NoneType, not a holdfast.App"),
        (["shop:empty"], "the app has no handler"),
        (["shop:app", "--idle", "1h"], "idle '1h'"),
        (["shop:app", "--grace", "long"], "'long' is not a duration"),
    ],
)
def test_what_cannot_run_ends_with_2(start: Start, tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import something_missing")
    process = start("worker", *arguments)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert said in err


def test_ctrl_c_in_a_command_that_waits(start: Start) -> None:
    process = start("publish", "orders", "-", "--json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("1\n")
    process.stdin.flush()
    process.stdout.readline()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_its_logs_are_json_and_carry_the_job_and_its_metrics_are_told(start: Start, tmp_path: Path) -> None:
    """Whatever a handler logs, also over several lines, is one line of JSON with the ids of its job."""
    (tmp_path / "loud.py").write_text(LOUD)
    process = start("worker", "loud:app", "--idle", "100ms", "--log-format", "json", "--metrics-port", "0")
    assert process.stderr is not None
    logged = [json.loads(process.stderr.readline()) for _ in range(4)]
    said = {entry["event"]: entry for entry in logged if entry["logger"] == "loud"}
    assert set(said) == {"a", "b"}
    assert said["a"]["message"] == "one\ntwo a"
    assert said["a"]["job"] != said["b"]["job"]
    [told] = [entry["message"] for entry in logged if entry["message"].startswith("metrics on ")]

    def counted() -> bool:
        text = httpx.get(told.removeprefix("metrics on ")).text
        return 'holdfast_settled_total{channel="orders",consumer="billing",outcome="done"} 2.0' in text

    _until(counted)
    text = httpx.get(told.removeprefix("metrics on ")).text
    assert 'holdfast_attempts_total{channel="orders",consumer="billing"} 2.0' in text
    assert 'holdfast_lifecycle_moves_total{move="abandoned",partition="0"} 0.0' in text
