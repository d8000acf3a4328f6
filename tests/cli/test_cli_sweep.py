"""`holdfast sweep`: what it says, what it changes, and how it ends."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import pytest
from shell import Run, Start

import holdfast
from holdfast.bus.sync import SyncBus
from holdfast.model.job import Job

psycopg = pytest.importorskip("psycopg")

NOBODY = "postgresql://127.0.0.1:1/x"


@pytest.fixture
def stuck(hf: SyncBus, database: str) -> Job:
    """A job whose worker has not been heard of since its lease ended, and an event that is a day old."""
    hf.subscribe("orders", "billing", max_abandonments=3)
    hf.publish("orders", {"n": 1}, id="o-1")
    hf.publish("gbe.notify.topic.news", "old", id="n-1")
    [job] = hf.poll("orders", "billing")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("UPDATE holdfast.store SET clock_offset = clock_offset + %s", (timedelta(days=2),))
    return job


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "holdfast.yaml"
    path.write_text('retention:\n  "gbe.notify.topic.*": 24h\n')
    return str(path)


def test_a_dry_run_says_what_would_be_and_changes_nothing(
    run: Run, hf: SyncBus, stuck: Job, file: str
) -> None:
    for _ in range(2):
        answer = run("sweep", "--once", "--dry-run", "--json", "--config", file)
        assert answer.code == 0
        swept = answer.json["swept"]
        assert (swept["dry_run"], swept["retried"]) == (True, 1)
        assert swept["trimmed"] == {"gbe.notify.topic.news": 1}
    words = run("sweep", "--dry-run", "--config", file).out
    assert words.endswith(": would be: 1 stuck jobs retried, 1 events trimmed\n")
    assert "gbe.events.system.sweep" not in [each["name"] for each in run("channels", "list", "--json").json]
    hf.finalize(stuck, success=True)  # late, but nobody has taken it away


def test_once_moves_what_is_stuck_tells_of_it_and_ends(run: Run, hf: SyncBus, stuck: Job, file: str) -> None:
    answer = run("sweep", "--once", "--config", file)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith(": 1 stuck jobs retried, 1 events trimmed\n")
    assert [entry.event.json()["event_id"] for entry in hf.read("gbe.events.system.retry")] == ["o-1"]
    [report] = [entry.event.json() for entry in hf.read("gbe.events.system.sweep")]
    assert (report["retried"], report["trimmed"]) == (1, {"gbe.notify.topic.news": 1})
    assert run("sweep", "--once", "--config", file).out.endswith(": nothing to do\n")
    with pytest.raises(holdfast.LeaseLost):
        hf.finalize(stuck, success=True)


def test_a_store_that_does_not_answer_is_named_and_the_others_are_swept(run: Run, database: str) -> None:
    answer = run("sweep", "--once", "--url", NOBODY, "--url", database)
    assert answer.code == 1
    assert "127.0.0.1:1/x: the sweep failed" in answer.err
    assert answer.out.endswith(": nothing to do\n")


def test_where_no_store_answers_the_exit_code_is_3(run: Run) -> None:
    assert run("sweep", "--once", "--url", NOBODY).code == 3


@pytest.fixture
def stops_with_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a sweep that is a process of its own."""
    monkeypatch.setenv("HOLDFAST_FAILPOINTS", "sweeper.after_lock=stop")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_and_frees_its_lock(
    stops_with_its_lock: None, start: Start, run: Run, number: signal.Signals, code: int
) -> None:
    process = start("sweep")
    assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (code, "", "")
    assert run("sweep", "--once").out.endswith(": nothing to do\n")
