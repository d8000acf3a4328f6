"""A control: one small scenario, played once as it should be and once with one guard switched off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.rig import Rig
from holdfast_chaos.stores import STORES

Play = Callable[[Rig, bool], Awaitable[set[str]]]
"""Plays the scenario, sound or with the defect; returns the invariants that the checks find broken."""
Result = Literal["found", "missed", "convicted", "not possible here"]


def _always() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class Control:
    """A deliberate defect, and the invariant that the checks must find broken."""

    name: str
    defect: str
    """In one sentence."""
    breaks: str
    """The invariant that must be found broken."""
    play: Play
    stores: tuple[str, ...] = tuple(STORES)
    """Where it applies."""
    missing: Callable[[], str | None] = _always
    """Why it cannot be played on this machine; None where it can."""


class ControlResult(NamedTuple):
    """What became of one control on one store."""

    control: str
    store: str
    verdict: Result
    detail: str = ""

    @property
    def convinces(self) -> bool:
        """Whether nothing speaks against the checks. That the control could be played is not required."""
        return self.verdict in ("found", "not possible here")


async def try_control(control: Control, name: str, store: ServerUnderTest, folder: Path) -> ControlResult:
    """Play a control on a store of that name, both ways."""
    if reason := await asyncio.to_thread(control.missing):
        return ControlResult(control.name, name, "not possible here", reason)
    if wrongly := await _play(control, store, folder / "sound", True):
        return ControlResult(control.name, name, "convicted", f"sound, and found to break {_list(wrongly)}")
    broken = await _play(control, store, folder / "broken", False)
    if control.breaks not in broken:
        return ControlResult(control.name, name, "missed", f"found was {_list(broken)}")
    return ControlResult(control.name, name, "found", _list(broken))


async def _play(control: Control, store: ServerUnderTest, folder: Path, sound: bool) -> set[str]:
    folder.mkdir(parents=True)
    rig = Rig(store, await store.empty(), folder)
    try:
        return await control.play(rig, sound)
    finally:
        await asyncio.to_thread(rig.close)


def _list(invariants: set[str]) -> str:
    return ", ".join(sorted(invariants, key=lambda name: int(name[1:]))) or "nothing"
