"""`holdfast chaos controls`: a table of defects, and an exit code that says whether to believe the judge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from shell import Run

from holdfast_chaos.controls import CONTROLS
from holdfast_chaos.controls.control import Control
from holdfast_chaos.rig import Rig

COMMAND = ("chaos", "controls", "--backend", "redis", "--only")


@pytest.fixture
def blind() -> Iterator[str]:
    """A control whose defect no judge can see, since there is none."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        return set()

    CONTROLS.append(Control("invisible", "Nothing is wrong.", "I1", play))
    yield "invisible"
    CONTROLS.pop()


@pytest.fixture
def unlucky() -> Iterator[str]:
    async def play(rig: Rig, sound: bool) -> set[str]:
        raise RuntimeError("no luck")

    CONTROLS.append(Control("unlucky", "Something is wrong.", "I1", play))
    yield "unlucky"
    CONTROLS.pop()


def test_what_is_found_stands_in_a_table(run: Run) -> None:
    answer = run(*COMMAND, "other-content, keyless")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].split() == ["NAME", "DEFECT", "BREAKS", "REDIS"]
    assert [(line.split()[0], line.split()[-2:]) for line in lines[1:3]] == [
        ("other-content", ["I2", "found"]),
        ("keyless", ["I13", "found"]),
    ]
    assert lines[3] == "2 found, 0 missed, 0 sound ones convicted"


def test_a_defect_that_is_missed_ends_with_1(run: Run, blind: str) -> None:
    shown, as_json = run(*COMMAND, blind), run(*COMMAND, blind, "--json")
    assert (shown.code, as_json.code) == (1, 1)
    assert "MISSED" in shown.out
    assert as_json.json == {
        "holds": False,
        "findings": [
            {"control": blind, "store": "redis", "verdict": "missed", "detail": "found was nothing"}
        ],
    }


def test_a_control_that_breaks_off_has_shown_nothing(run: Run, unlucky: str) -> None:
    answer = run(*COMMAND, unlucky)
    assert answer.code == 1
    assert "it broke off: RuntimeError: no luck" in answer.out


@pytest.mark.parametrize("options", [("--only", "unheard-of"), ("--backend", "oracle")])
def test_an_unknown_name_is_refused_with_the_known_ones(run: Run, options: tuple[str, str]) -> None:
    answer = run("chaos", "controls", *options)
    assert answer.code == 2
    assert f"{options[1]!r} is unknown; there are" in answer.err
