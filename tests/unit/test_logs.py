"""Logs as JSON: one line per record, whatever is in it, with the ids of what the code works for."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from io import StringIO

import pytest

from holdfast.cli import logs
from holdfast.cli.logs import JsonLines, Lines
from holdfast.correlation import correlated, ids

HOSTILE = 'a\nb\r\n\x1b[31m"quoted" \u2028 \ud800 {"level":"critical"}'


def record(message: str, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("holdfast.test", logging.WARNING, __file__, 1, message, args, None)
    for name, value in more.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("hostile", [HOSTILE, "\x00", "\x85", "\u2029", "\ud800"])
def test_a_record_is_one_line_whatever_it_says(hostile: str) -> None:
    line = JsonLines().format(record("event %s failed", hostile))
    assert len(line.splitlines()) == 1
    assert json.loads(line)["level"] == "warning"
    assert len(Lines("%(message)s").format(record("event %s failed", hostile)).splitlines()) == 1


def test_an_error_has_its_traceback_in_the_same_line() -> None:
    try:
        raise ValueError("line one\nline two")
    except ValueError:
        made = record("it failed", exc_info=sys.exc_info())
    line = JsonLines().format(made)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["error"].endswith("ValueError: line one\nline two")


def test_ids_stand_in_the_line_and_go_with_their_block() -> None:
    with correlated(operation="op-1"), correlated(batch="b-2"):
        entry = json.loads(JsonLines().format(record("x")))
        assert (entry["operation"], entry["batch"]) == ("op-1", "b-2")
    assert "operation" not in json.loads(JsonLines().format(record("x")))


def test_an_id_can_take_no_field_of_the_line_away() -> None:
    with correlated(message="forged", level="debug"):
        entry = json.loads(JsonLines().format(record("true")))
    assert (entry["message"], entry["level"]) == ("true", "warning")


async def test_tasks_have_ids_of_their_own() -> None:
    async def work(name: str) -> dict[str, str]:
        with correlated(job=name):
            await asyncio.sleep(0)
            return ids()

    found = await asyncio.gather(*(work(str(number)) for number in range(5)))
    assert found == [{"job": str(number)} for number in range(5)]


@pytest.mark.parametrize(
    ("form", "as_json", "terminal", "lines"),
    [
        ("auto", False, True, True),
        ("auto", False, False, False),
        ("auto", True, True, False),
        ("json", False, True, False),
        ("lines", True, False, True),
    ],
)
def test_the_format_follows_what_is_asked_for(
    form: str, as_json: bool, terminal: bool, lines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(StringIO):
        def isatty(self) -> bool:
            return terminal

    screen, root = Screen(), logging.getLogger()
    before = root.handlers[:], root.level
    monkeypatch.setattr(sys, "stderr", screen)
    try:
        root.handlers = []
        logs.configure(form, as_json=as_json)
        logging.getLogger("holdfast.test").info("hello %s", "you")
    finally:
        root.handlers, root.level = before
    [line] = screen.getvalue().splitlines()
    assert (not line.startswith("{")) is lines
    assert "hello you" in line
