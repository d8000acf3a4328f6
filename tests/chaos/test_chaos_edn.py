"""The history of a run as EDN, read back by a small reader of that form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import InvalidInput
from holdfast_chaos import edn
from holdfast_chaos.cli.export import export
from holdfast_chaos.history import History, read

_TOKEN = re.compile(r'[\s,]*([\[\]{}]|"(?:[^"\\]|\\.)*"|[^\s,\[\]{}"]+)')
_WORDS = {"nil": None, "true": True, "false": False}


def parsed(text: str) -> Any:
    tokens = iter(_TOKEN.findall(text))
    found = _value(next(tokens), tokens)
    assert next(tokens, None) is None
    return found


def _value(token: str, tokens: Iterator[str]) -> Any:
    if token == "[":
        return [_value(each, tokens) for each in iter(lambda: next(tokens), "]")]
    if token == "{":
        return {
            _value(each, tokens): _value(next(tokens), tokens) for each in iter(lambda: next(tokens), "}")
        }
    if token in _WORDS:
        return _WORDS[token]
    return token if token.startswith(":") else json.loads(token)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A process with two calls at once, one without an answer, and one after it."""
    history = History(tmp_path / "00001-producer.jsonl")
    first = history.invoked("publish", [{"id": 'a "quoted"\né', "data": None}], channel="orders")
    second = history.invoked("claim", [{"consumer": "billing"}])
    history.answered(first, "ok", [{"position": "7", "duplicate": False}])
    history.answered(second, "ok", ["1", "2"])
    lost = history.invoked("complete", [{"job": 1}])
    third = history.invoked("cancel", [{"odd key": 1.5}])
    history.answered(third, "failed")
    assert lost < third
    history.close()
    return tmp_path


def test_every_call_becomes_operations_of_processes_that_have_one_at_a_time(folder: Path) -> None:
    export(folder, folder / "history.edn")
    found = [parsed(line) for line in (folder / "history.edn").read_text().splitlines()]
    assert [each[":index"] for each in found] == list(range(7))
    assert [each[":time"] for each in found] == sorted(each[":time"] for each in found)
    assert {each[":node"] for each in found} == {"00001-producer"}
    assert [(each[":process"], each[":type"], each[":f"]) for each in found] == [
        (0, ":invoke", ":publish"),
        (1, ":invoke", ":claim"),
        (0, ":ok", ":publish"),
        (1, ":ok", ":claim"),
        (0, ":invoke", ":complete"),
        (1, ":invoke", ":cancel"),
        (1, ":fail", ":cancel"),
    ]
    item = {":channel": "orders", ":id": 'a "quoted"\né', ":data": None}
    assert found[0][":value"] == [item]
    assert found[2][":value"] == [item | {":answer": {":position": "7", ":duplicate": False}}]
    assert found[3][":value"] == ["1", "2"]
    assert found[5][":value"] == [{"odd key": 1.5}]


def test_a_process_whose_call_has_no_answer_is_not_used_again(folder: Path) -> None:
    used = [each for each in edn.operations(read(folder)) if each["process"] == 0]
    assert used[-1]["f"] == "complete"
    assert used[-1]["type"] == "invoke"


def test_a_folder_without_histories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no histories"):
        export(tmp_path, tmp_path / "history.edn")
