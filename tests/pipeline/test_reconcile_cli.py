"""Reconcile, trace, failed and rebuild as a shell sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
import typer
import yaml
from sites import CHANNEL, Site

from holdfast.cli import main
from holdfast.cli.output import plain
from holdfast.cli.reconcile import print_reports
from holdfast.pipeline.reconcile.report import Difference, ReconcileReport, Tally


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process."""
    for name in ("HOLDFAST_URL", "HOLDFAST_CONFIG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return Answer(int(ended.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    site = Site(database, tmp_path)
    site.publish("e-1", "e-2")
    site.publish("bad", data={})
    site.archive()
    site.ingest()
    return site


@pytest.fixture
def config(site: Site) -> str:
    """The site as a file says it."""
    columns = {"n": "integer"}
    document = {
        "url": site.url,
        "archiver": {
            "streams": [{"stream": "gbe.events.audit.*", "destination": "folder", "path": site.cold}]
        },
        "ingest": {
            "channels": [CHANNEL],
            "warehouse": site.plan.warehouse,
            "wal": {"path": site.plan.wal.path},
            "tables": {CHANNEL: {"table": "changes", "columns": columns}},
            "validation": {CHANNEL: {"required": ["n"]}},
        },
    }
    file = site.folder / "holdfast.yaml"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def spark_command(config: str, *arguments: str) -> Answer:
    """A command with a Spark of its own."""
    names = ("HOLDFAST_URL", "DATABASE_URL")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-m", "holdfast.cli", *arguments, "--config", config, "--master", "local[2]"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return Answer(done.returncode, done.stdout, done.stderr)


# trace and failed need no Spark here


def test_trace_in_a_table_and_as_json(run: Run, config: str) -> None:
    shown = run("trace", "e-1", "--config", config)
    assert shown.code == 0, shown.err
    assert shown.out.startswith(f"e-1 from default in {CHANNEL}\n")
    for what in ("published", "archived", "in the WAL", "in the warehouse", "confirmed"):
        assert what in shown.out
    [life] = run("trace", "e-1", "--config", config, "--json", "--channel", CHANNEL).json
    assert [step["what"] for step in life["steps"]][:2] == ["published", "archived"]


def test_failed_events_are_listed_and_shown(run: Run, config: str) -> None:
    [event] = run("failed", "list", "--config", config, "--json").json
    assert (event["event_id"], event["failure_reason"], event["status"]) == ("bad", "invalid", "pending")
    assert "required fields are missing: n" in run("failed", "list", "--config", config).out
    assert "event payload" in run("failed", "show", event["id"], "--config", config).out
    assert run("failed", "list", "--config", config, "--status", "resolved").err == "no event has failed\n"
    assert run("failed", "show", "none", "--config", config).code == 1


def test_a_retry_that_fails_again_ends_with_1_and_an_abandoned_one_is_over(
    run: Run, config: str, site: Site
) -> None:
    [event] = run("failed", "list", "--config", config, "--json").json
    retried = run("failed", "retry", event["id"], "--by", "ann", "--config", config, "--json")
    assert (retried.code, retried.json["status"], retried.json["retry_count"]) == (1, "pending", 1)
    abandoned = run("failed", "abandon", event["id"], "--by", "ann", "--notes", "a test", "--config", config)
    assert abandoned.code == 0, abandoned.err
    again = run("failed", "resolve", event["id"], "--by", "ann", "--notes", "x", "--config", config)
    assert (again.code, "is abandoned" in again.err) == (2, True)
    assert [each.status for each in site.warehouse.failed()] == ["abandoned"], "the warehouse was told"


def test_a_retry_that_goes_in_ends_with_0(run: Run, config: str) -> None:
    document = yaml.safe_load(Path(config).read_text())
    document["ingest"]["validation"] = {}
    Path(config).write_text(yaml.safe_dump(document))
    [event] = run("failed", "list", "--config", config, "--json").json
    done = run("failed", "retry", event["id"], "--config", config, "--json")
    assert (done.code, done.json["status"]) == (0, "resolved")
    assert run("trace", "bad", "--config", config).out.count("in the warehouse") == 1


# reports


def report(*tallies: Tally) -> ReconcileReport:
    found = [Difference("warehouse", each.kind, 0, "0001-01", "default", "e-9") for each in tallies]
    return ReconcileReport(CHANNEL, date(2026, 2, 14), 10, 2, 10, 8, 1, 1, 0, tallies, found)


def test_an_equal_report_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    print_reports([report()], as_json=False)
    out, err = capsys.readouterr()
    assert "equal: published = archived = ingested + failed; lost 0, duplicates 0" in err
    assert "2026-02-14" in out


@pytest.mark.parametrize(("kind", "verdict"), [("waiting", "not equal yet"), ("missing", "NOT EQUAL")])
def test_a_difference_ends_with_1_and_is_named(
    capsys: pytest.CaptureFixture[str], kind: str, verdict: str
) -> None:
    wrong = report(Tally("warehouse", kind, 1))  # type: ignore[arg-type]
    for as_json in (False, True):
        with pytest.raises(typer.Exit) as ended:
            print_reports([wrong], as_json=as_json)
        assert ended.value.exit_code == 1
        out, err = capsys.readouterr()
        assert "e-9" in out
        assert as_json or verdict in err
    assert json.loads(out)["equal"] is plain(wrong)["equal"] is False


# with Spark, in processes of their own


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_reconcile_and_rebuild_from_the_shell(site: Site, config: str) -> None:
    equal = spark_command(config, "reconcile", CHANNEL, "--json")
    assert equal.code == 0, equal.err
    assert (equal.json["equal"], equal.json["ingested"], equal.json["failed"]) == (True, 2, 1)
    site.file.unlink()
    lost = spark_command(config, "reconcile", CHANNEL, "--day", "2026-02-14")
    assert lost.code == 1, lost.err
    assert "NOT EQUAL" in lost.err
    assert "e-2" in lost.out
    rebuilt = spark_command(config, "warehouse", "rebuild")
    assert rebuilt.code == 0, rebuilt.err
    assert "equal: published = archived = ingested + failed" in rebuilt.err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_repair_from_the_shell(site: Site, config: str) -> None:
    with duckdb.connect(str(site.file)) as connection:
        connection.execute("UPDATE changes SET n = 100 WHERE id = 'e-1'")
    shown = spark_command(config, "warehouse", "repair", "--dry-run", "--json")
    assert shown.code == 1, shown.err
    assert (shown.json["dry_run"], shown.json["restored"], shown.json["removed"]) == (True, {"wal": 1}, 0)
    assert "1 positions would be put right; rows would be put in: 1 from the wal" in shown.err
    done = spark_command(config, "warehouse", "repair", "--channel", CHANNEL)
    assert done.code == 0, done.err
    assert "equal: published = archived = ingested + failed" in done.err


def test_a_channel_that_is_not_there_is_not_repaired(run: Run, config: str) -> None:
    for verb in ("repair", "rebuild"):
        wrong = run("warehouse", verb, "--channel", "oders", "--config", config)
        assert (wrong.code, "there is no channel 'oders'" in wrong.err) == (1, True)


def test_wrong_input_is_said_before_spark_starts(run: Run, config: str, database: str) -> None:
    assert "--day '14.2.'" in run("reconcile", CHANNEL, "--day", "14.2.", "--config", config).err
    nothing = run("reconcile", CHANNEL, "--url", database)
    assert (nothing.code, "nothing to compare with" in nothing.err) == (2, True)
    assert run("reconcile", "no good name", "--config", config).code == 2


def test_an_empty_wal_has_no_failed_events(run: Run, tmp_path: Path) -> None:
    assert run("failed", "list", "--wal", str(tmp_path), "--json").json == []
