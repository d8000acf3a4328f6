"""The command line: any arguments end with an honest exit code and a line that says why."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import typer
from hostile import NASTY, TEXTS, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.cli import main
from holdfast.cli.program import program

# Those that ask one store and end. The others run on, or need Spark for whatever they are given.
GROUPS = {"publish", "subscribe", "channels", "consumers", "jobs", "dlq", "tokens", "config", "check"}
# What leads elsewhere: to other servers and other folders.
NOT_GIVEN = {"--url", "--wal", "--warehouse", "--help", "--config"}
PLAUSIBLE = [
    "orders",
    "billing",
    "1",
    "0",
    "-1",
    "30s",
    "2026-07-01T00:00:00Z",
    "job:orders:billing:1",
    "admin",
    "job",
    "{}",
    "-",
    "@x",
]
VALUES = st.one_of(TEXTS, st.sampled_from(PLAUSIBLE))


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that lead to it."""
    if hasattr(command, "commands"):
        for name, each in command.commands.items():
            yield from commands(each, (*path, name))
    else:
        yield path, command


COMMANDS = {
    path: command for path, command in commands(typer.main.get_command(program())) if path[0] in GROUPS
}


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """A command with arguments and options of its own, of any content."""
    path = draw(st.sampled_from(sorted(COMMANDS)))
    given_line = list(path)
    for each in COMMANDS[path].params:
        if each.param_type_name == "argument":
            given_line += draw(
                st.lists(VALUES, min_size=0 if each.nargs < 0 else 1, max_size=2 if each.nargs < 0 else 1)
            )
        elif each.opts[-1] not in NOT_GIVEN and draw(st.integers(0, 3)) == 0:
            given_line += [each.opts[-1], *([] if getattr(each, "is_flag", False) else [draw(VALUES)])]
    return given_line


@pytest.fixture
def shell(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own, and a store to ask."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_URL", database)


def run(arguments: list[str]) -> tuple[int, str]:
    """The exit code, and what was said; both streams are as strict as a shell's."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(
            sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff{}\n"), "utf-8", errors="surrogateescape")
        )
        with pytest.raises(SystemExit) as ended:
            main(arguments)
    err.flush()
    return int(ended.value.code or 0), err.buffer.getvalue().decode()  # type: ignore[attr-defined]


def judge(arguments: list[str]) -> int:
    code, said = run(arguments)
    assert code in (0, 1, 2, 3)
    assert "Traceback" not in said
    assert code == 0 or said.strip() or "check" in arguments or "clusters" in arguments
    return code


@fuzzed(0.6, shrink=False)
@given(lines())
@example(["publish", "orders", "\udcff"])
@example(["publish", "\udcff", "{}"])
@example(["publish", "orders", "{}", "--id", "\udcff"])
@example(["publish", "orders", "{}", "--at", "0001-01-01T00:00:00+14:00"])
@example(["publish", "orders", "[" * 5_000])
@example(["dlq", "list", "--after", "eJyrVsrKT3IwULKKzivNydFRMjIwMlPSUapQiq0FAHEnB7c"])
@example(["dlq", "patch", "--patch", "[" * 5_000, "job:orders:billing:1", "--yes"])
@example(["dlq", "list", "--since", "9" * 5_000])
@example(["tokens", "create", "reader", "--name", "\udcff"])
@example(["tokens", "create", "reader", "--expires", "99999999d"])
@example(["tokens", "create", "reader", "--expires", "36500d"])
@example(["config", "check", "\0"])
@example(["config", "check", "\udcff"])
@example(["channels", "name", "orders", "\udcff"])
def test_any_arguments_end_with_an_exit_code(shell: None, arguments: list[str]) -> None:
    judge(arguments)


@pytest.mark.parametrize(
    "url",
    [text for text in NASTY if text and len(text) < 100]
    + ["redis://[", "nats://x:99999", "postgresql://h:b/x"],
)
def test_a_url_that_is_none_is_wrong_input(shell: None, url: str) -> None:
    assert judge(["channels", "list", "--url", url]) == 2


@fuzzed(0.2, shrink=False)
@given(st.lists(VALUES, max_size=4))
def test_words_that_are_no_command_are_wrong_input(shell: None, words: list[str]) -> None:
    if not words or words[0] not in ("-h", "--help"):
        assert judge(["dlq", "?", *words]) == 2
