"""What is not there is said to be missing, is not made, and never looks as if all were well."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import Run, Start

from holdfast import wiring
from holdfast.bus.sync import SyncBus
from holdfast.cli.pipeline import streams_elsewhere, streams_of
from holdfast.cli.session import warn_unmatched

pytest.importorskip("pyspark")


@pytest.mark.parametrize(
    "arguments",
    [
        ["archive", "verify", "--destination"],
        ["replay", "--to", "orders", "--where", "true", "--from"],
        ["compact", "--day", "2026-02-14", "--from"],
        ["compact", "--from"],
    ],
)
def test_an_archive(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    answer = run(*arguments, str(tmp_path / "cold"))
    assert (answer.code, answer.out) == (1, "")
    assert f"there is no archive in file://{tmp_path}/cold" in answer.err
    assert not (tmp_path / "cold").exists()


@pytest.mark.parametrize("arguments", [["failed", "list"], ["failed", "show", "x"], ["dlq", "list"]])
def test_a_wal(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    answer = run(*arguments, "--wal", str(tmp_path / "wal"))
    assert (answer.code, answer.out) == (1, "")
    assert f"there is no WAL in {tmp_path}/wal" in answer.err
    assert not (tmp_path / "wal").exists()


@pytest.mark.parametrize(
    "arguments", [["reconcile", "orders"], ["warehouse", "repair"], ["warehouse", "rebuild"]]
)
def test_an_archive_to_compare_with(run: Run, hf: SyncBus, tmp_path: Path, arguments: list[str]) -> None:
    hf.publish("orders", {})
    places = [f"--warehouse=duckdb://{tmp_path}/warehouse.duckdb", f"--wal={tmp_path}/wal"]
    answer = run(*arguments, *places, "--archive", str(tmp_path / "cold"))
    assert (answer.code, answer.out) == (1, "")
    assert f"there is no archive in file://{tmp_path}/cold" in answer.err


@pytest.mark.parametrize("kind", ["duckdb", "delta"])
def test_a_warehouse(run: Run, hf: SyncBus, tmp_path: Path, kind: str) -> None:
    hf.publish("orders", {})
    url = f"{kind}://{tmp_path}/warehouse"
    answer = run("warehouse", "repair", "--warehouse", url, "--wal", str(tmp_path / "wal"))
    assert (answer.code, answer.out) == (1, "")
    assert f"there is no warehouse {url}; correct the name, or fill a new one" in answer.err
    assert not (tmp_path / "warehouse").exists()


def test_a_channel(run: Run, tmp_path: Path) -> None:
    for arguments in (["consumers", "list", "none"], ["reconcile", "none", "--archive", str(tmp_path)]):
        answer = run(*arguments)
        assert (answer.code, answer.out) == (1, "")
        assert "there is no channel 'none'" in answer.err


def test_a_consumer_that_a_monitor_asks_for(run: Run, hf: SyncBus) -> None:
    hf.subscribe("orders", "billing")
    check = ("dlq", "check", "--warn", "0", "--crit", "1")
    assert run(*check, "--channel", "orders", "--consumer", "billing").code == 0
    for options in (["--channel", "order"], ["--channel", "orders", "--consumer", "bill"], ["--channel", ""]):
        answer = run(*check, *options)
        assert (answer.code, answer.out.startswith("DEAD LETTERS UNKNOWN")) == (3, True)


def test_an_empty_filter_does_not_mean_all(run: Run, hf: SyncBus) -> None:
    hf.subscribe("orders", "billing")
    answer = run("dlq", "purge", "--channel", "orders", "--consumer", "", "--yes")
    assert (answer.code, "--consumer is empty" in answer.err) == (2, True)


def test_an_archive_is_the_same_however_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "holdfast.yaml"
    file.write_text(
        "archiver:\n  streams:\n"
        "    - {stream: orders, destination: folder, path: ./cold}\n"
        "    - {stream: audit, destination: s3://bucket/prefix}\n"
    )
    config = wiring.configured([], str(file))
    for written in ("cold", "./cold/", str(tmp_path / "cold"), f"file://{tmp_path}/cold"):
        assert (streams_of(config, written), streams_elsewhere(config, written)) == (["orders"], ["audit"])
    assert streams_of(config, "s3://bucket/prefix/") == ["audit"]
    assert streams_elsewhere(wiring.configured([], None), "cold") == [], "a default says nothing of this one"


async def test_a_pattern_that_selects_nothing_is_said(
    database: str, hf: SyncBus, capsys: pytest.CaptureFixture[str]
) -> None:
    hf.create_channel("shop.orders")
    hf.publish("gbe.events.system.error", {})
    config = wiring.configured([database], None)
    await warn_unmatched(config, [database], ["shop.orders", "shop.*", ">", "gbe.events.system.*"])
    assert capsys.readouterr().err == ""
    await warn_unmatched(config, [database], ["shop.>", "shpo.>", "oders", "gbe.events.>"])
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in told] == [
        "no channel matches 'shpo.>'",
        "no channel matches 'oders'",
        "no channel matches 'gbe.events.>'",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["archive", "--destination", "cold", "--stream"], "nothing new to archive"),
        (["ingest", "--warehouse", "duckdb:///dev/null/none", "--channel"], "written to the WAL"),
    ],
)
def test_a_command_says_so_and_ends_as_before(
    start: Start, hf: SyncBus, arguments: list[str], answer: str
) -> None:
    hf.create_channel("shop.orders")
    command = start(*arguments, "shpo.*", "--once", "--master", "local[1]")
    out, err = command.communicate()
    assert (command.returncode, out.startswith(answer)) == (0, True)
    assert "no channel matches 'shpo.*'; 'holdfast channels list' shows all\n" in err
