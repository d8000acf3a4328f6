"""`holdfast config`, and `--config` on the commands that connect."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from shell import Run

from holdfast.bus.sync import SyncBus
from holdfast.cli.program import program

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "holdfast.yaml")


@pytest.fixture
def broken(tmp_path: Path) -> str:
    (tmp_path / "broken.yaml").write_text("sweeper:\n  interval: 7x\n  nope: 1\n")
    return str(tmp_path / "broken.yaml")


@pytest.fixture
def file(tmp_path: Path, database: str) -> str:
    """A file that names this test's store."""
    (tmp_path / "holdfast.yaml").write_text(f"url: {database}\nsweeper: {{interval: 11s}}\n")
    return str(tmp_path / "holdfast.yaml")


def test_a_valid_file(run: Run) -> None:
    answer = run("config", "check", EXAMPLE)
    assert (answer.code, answer.err) == (0, f"{EXAMPLE} is valid\n")
    assert run("config", "check", EXAMPLE, "--json").json == {"file": EXAMPLE, "problems": []}


def test_every_problem_is_a_line_and_the_exit_code_is_2(run: Run, broken: str) -> None:
    answer = run("config", "check", broken)
    first, second = answer.err.splitlines()
    assert answer.code == 2
    assert first.startswith(f"holdfast: {broken}:2:13: sweeper.interval: '7x' is not a duration")
    assert second.startswith(f"holdfast: {broken}:3:3: sweeper.nope: unknown key, with the value 1;")


def test_problems_as_json(run: Run, broken: str) -> None:
    answer = run("config", "check", broken, "--json")
    assert answer.code == 2
    first, second = answer.json["problems"]
    assert {name: first[name] for name in ("origin", "line", "column", "path")} == {
        "origin": broken,
        "line": 2,
        "column": 13,
        "path": "sweeper.interval",
    }
    assert second["path"] == "sweeper.nope"
    assert "unknown key" in second["message"]


def test_check_asks_neither_the_environment_nor_a_store(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_SWEEPER__INTERVAL", "nonsense")
    (tmp_path / "h.yaml").write_text("url: redis://nowhere.invalid:1/0\n")
    assert run("config", "check", str(tmp_path / "h.yaml")).code == 0


def test_show_tells_where_each_value_comes_from(
    run: Run, file: str, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.setenv("HOLDFAST_SERVER__PORT", "9000")
    answer = run("config", "show", "--config", file, "--json")
    found = {each["key"]: (each["value"], each["origin"]) for each in answer.json}
    password = database.partition("@")[0].rpartition(":")[2]
    assert found["url"] == ([database.replace(password, "***")], f"{file}:1:6")
    assert found["sweeper.interval"] == ("11s", f"{file}:2:21")
    assert found["server.port"] == (9000, "HOLDFAST_SERVER__PORT")
    assert found["sweeper.history"] == ("7d", "default")
    shown = run("config", "show", "--config", file, "--url", "nats://elsewhere")
    assert password not in shown.out
    rows = [line.split() for line in shown.out.splitlines()]
    assert ["KEY", "VALUE", "FROM"] in rows
    assert ["url", "nats://elsewhere", "--url"] in rows
    assert ["server.port", "9000", "HOLDFAST_SERVER__PORT"] in rows


def test_a_command_takes_its_store_from_the_file(
    run: Run, file: str, hf: SyncBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_URL")
    assert run("publish", "orders", "1", "--id", "o-1", "--config", file).code == 0
    monkeypatch.setenv("HOLDFAST_CONFIG", file)
    assert run("channels", "list", "--json").json == [{"name": "orders", "consumers": []}]
    assert [entry.event.id for entry in hf.read("orders")] == ["o-1"]


def test_a_command_refuses_a_broken_file_before_it_connects(run: Run, broken: str) -> None:
    answer = run("channels", "list", "--config", broken)
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 2


def test_every_command_that_connects_takes_a_file() -> None:
    root = typer.main.get_command(program())
    groups = [root, *(each for each in root.commands.values() if hasattr(each, "commands"))]  # type: ignore[attr-defined]
    commands = [each for group in groups for each in group.commands.values() if not hasattr(each, "commands")]
    options = {each.name: {name for one in each.params for name in one.opts} for each in commands}
    connecting = {name for name, known in options.items() if "--url" in known and name != "demo"}
    assert len(connecting) > 10
    assert all("--config" in options[name] for name in connecting)
