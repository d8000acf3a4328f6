"""Patches: what fits is applied, what does not is refused, and none can fill the memory."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from holdfast.deadletters import payloads
from holdfast.deadletters.payloads import apply, apply_isolated, change, change_isolated, check_patch, digest
from holdfast.model.errors import InvalidInput
from holdfast.model.event import MAX_DATA

DATA = b'{"id": "a", "lines": [1, 2]}'


def test_every_verb_does_what_it_says() -> None:
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/id", "value": "a"},
        {"op": "add", "path": "/lines/-", "value": 3},
        {"op": "remove", "path": "/lines/0"},
        {"op": "replace", "path": "/id", "value": "b"},
        {"op": "copy", "from": "/id", "path": "/old"},
        {"op": "move", "from": "/lines", "path": "/rows"},
    ]
    check_patch(patch)
    assert json.loads(apply("x", DATA, patch)) == {"id": "b", "old": "b", "rows": [2, 3]}


def test_a_change_is_shown_line_by_line() -> None:
    shown = change("job:a:b:1", DATA, [{"op": "replace", "path": "/id", "value": "ü"}])
    assert (shown.before["id"], shown.after["id"], shown.digest) == ("a", "ü", digest(DATA))
    changed = [line for line in shown.diff.splitlines() if line[0] in "+-" and line[1] not in "+-"]
    assert changed == ['-  "id": "a",', '+  "id": "ü",']
    assert change("job:a:b:1", DATA, [{"op": "test", "path": "/id", "value": "a"}]).diff == ""


WRONG: list[Any] = [
    {},
    {"op": "steal", "path": "/id"},
    {"op": "add", "path": "/id"},
    {"op": "add", "path": 7, "value": 1},
    {"op": "add", "path": "id", "value": 1},
    {"op": "add", "path": "/~2", "value": 1},
    {"op": ["add"], "path": "/id", "value": 1},
    {"op": "move", "path": "/id"},
    {"op": "move", "from": None, "path": "/id"},
    {"op": "remove", "path": None},
    {"path": "/id", "value": 1},
    {"op": "add", "path": "/id", "value": "\ud800"},
    {"op": "add", "path": "/id", "value": float("nan")},
    "text",
    None,
    7,
    ["op"],
]
UNFIT: list[dict[str, Any]] = [
    {"op": "test", "path": "/id", "value": "b"},
    {"op": "remove", "path": "/missing"},
    {"op": "replace", "path": "/missing/deep", "value": 1},
    {"op": "add", "path": "/lines/9", "value": 1},
    {"op": "add", "path": "/lines/x", "value": 1},
    {"op": "add", "path": "/id/deep", "value": 1},
    {"op": "move", "from": "/lines", "path": "/lines/0"},
]


@pytest.mark.parametrize("step", WRONG, ids=str)
def test_what_is_no_patch_is_refused(step: Any) -> None:
    with pytest.raises(InvalidInput):
        check_patch([step])


@pytest.mark.parametrize("step", UNFIT, ids=str)
def test_what_does_not_fit_is_refused(step: dict[str, Any]) -> None:
    check_patch([step])
    with pytest.raises(InvalidInput):
        apply("x", DATA, [step])


@pytest.mark.parametrize("data", [b"\xff", b"", b"{", b"[" * 100_000, b"[" * 400 + b"]" * 400], ids=len)
def test_data_that_is_no_json_or_too_deep_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        apply("x", data, [{"op": "remove", "path": "/id"}])


def test_a_patch_that_doubles_itself_is_stopped() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/copy{number}"} for number in range(100)]
    check_patch(doubling)
    with pytest.raises(InvalidInput, match=str(MAX_DATA)):
        apply("x", DATA, doubling)
    with pytest.raises(InvalidInput, match="101 steps"):
        check_patch([*doubling, doubling[0]])


LARGE = json.dumps({"rows": list(range(150_000))}).encode()


async def test_large_data_is_patched_in_a_process_with_the_same_result() -> None:
    patch = [{"op": "replace", "path": "/rows/7", "value": "ü"}, {"op": "add", "path": "/id", "value": 1}]
    assert await apply_isolated("x", LARGE, patch) == apply("x", LARGE, patch)
    assert await change_isolated("x", LARGE, patch) == change("x", LARGE, patch)
    with pytest.raises(InvalidInput, match="does not fit x"):
        await apply_isolated("x", LARGE, [{"op": "remove", "path": "/missing"}] * 2)


async def test_a_patch_that_takes_too_long_is_ended_and_holds_up_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(payloads, "SECONDS", 1)
    began = time.process_time()
    with pytest.raises(InvalidInput, match="takes over 1 s or 512 MiB"):
        await apply_isolated("x", LARGE, [{"op": "replace", "path": "/rows/7", "value": 8}] * 100)
    assert time.process_time() - began < 2, "it was done in this process"
