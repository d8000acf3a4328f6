"""Positive controls: with one guard switched off, the same rig finds the violation.

A zero in the other files is believable only because of these. The usual run has each control on one store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast_chaos.controls import CONTROLS
from holdfast_chaos.controls.control import Control, ControlResult, try_control
from holdfast_chaos.faulty_backend import WrappedNoun, maker
from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.rig import CHANNEL, Rig
from holdfast_chaos.stores import STORES


def cases() -> Iterator[Any]:
    for turn, control in enumerate(CONTROLS):
        for place, store in enumerate(control.stores):
            dealt = turn % len(control.stores) == place
            marks = () if dealt else pytest.mark.slow
            yield pytest.param(store, control, marks=marks, id=f"{control.name}-{store}")


@pytest.mark.parametrize(("store", "control"), list(cases()), indirect=["store"])
async def test_a_defect_is_found_and_its_sound_twin_is_not(
    store: ServerUnderTest, control: Control, tmp_path: Path
) -> None:
    finding = await try_control(control, "here", store, tmp_path)
    if finding.verdict == "not possible here":
        pytest.skip(finding.detail)
    assert finding.verdict == "found", finding


def test_every_control_has_a_name_of_its_own_and_most_invariants_have_one() -> None:
    names = [control.name for control in CONTROLS]
    assert len(names) == len(set(names)) >= 18
    assert {control.breaks for control in CONTROLS} == {f"I{n}" for n in range(1, 21)}


@pytest.mark.parametrize("store", ["redis"], indirect=True)
@pytest.mark.parametrize(
    ("broken", "verdict"),
    [
        ({True: set[str](), False: {"I1"}}, "found"),
        ({True: set[str](), False: {"I2"}}, "missed"),
        ({True: {"I1"}, False: {"I1"}}, "convicted"),
    ],
)
async def test_a_control_that_tells_nothing_apart_convinces_nobody(
    store: ServerUnderTest, tmp_path: Path, broken: dict[bool, set[str]], verdict: str
) -> None:
    async def play(rig: Rig, sound: bool) -> set[str]:
        return broken[sound]

    finding = await try_control(Control("it", "Something.", "I1", play), "redis", store, tmp_path)
    assert (finding.verdict, finding.convinces) == (verdict, verdict == "found")


@pytest.mark.parametrize("store", ["redis"], indirect=True)
async def test_what_cannot_be_played_here_says_why(store: ServerUnderTest, tmp_path: Path) -> None:
    async def play(rig: Rig, sound: bool) -> set[str]:
        raise AssertionError("it was played")

    control = Control("it", "Something.", "I1", play, missing=lambda: "there is no disk")
    finding = await try_control(control, "redis", store, tmp_path)
    assert finding == ControlResult("it", "redis", "not possible here", "there is no disk")
    assert finding.convinces


@pytest.mark.parametrize("store", ["redis"], indirect=True)
async def test_a_faulty_backend_is_otherwise_the_same(rig: Rig) -> None:
    class Sound(WrappedNoun, noun="log"):
        """Overrides nothing."""

    async with rig.bus("publisher", maker(False, Sound)) as bus:
        await bus.publish(CHANNEL, {"n": 1}, id="e")
    assert await rig.logged() == ["e"]
    assert await rig.violations() == []


def test_the_documentation_lists_every_control() -> None:
    page = Path(__file__).parents[2] / "docs" / "controls.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{each.name}` | {each.defect} | {each.breaks} | "
        f"{'all' if each.stores == tuple(STORES) else ', '.join(each.stores)} |"
        for each in CONTROLS
    ]
