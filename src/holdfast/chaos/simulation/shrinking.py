"""Shrinking: fewer steps that still violate the same invariant."""

from __future__ import annotations

from holdfast.chaos.simulation.chance import Chance, Script
from holdfast.chaos.simulation.world import Build, History, play

_LINES = 12_000
"""How much is played at most."""


def shrink(build: Build, seed: int, found: History) -> History:
    """The smallest history that leaving out steps leads to, within a bounded effort."""
    return _Shrinking(build, seed, found).run()


class _Shrinking:
    def __init__(self, build: Build, seed: int, found: History) -> None:
        self._build, self._seed, self._smallest = build, seed, found
        self._setting, *steps = found.script
        self._steps: Script = steps[: found.steps]
        self._left = _LINES

    def run(self) -> History:
        """Leave out halves, quarters and so on, then single steps as long as that helps."""
        size = len(self._steps)
        while size and self._left > 0:
            before = len(self._steps)
            self._leave_out(size)
            if size > 1 or len(self._steps) == before:
                size //= 2
        return self._smallest

    def _leave_out(self, size: int) -> None:
        at = 0
        while at < len(self._steps) and self._left > 0:
            if not self._works(self._steps[:at] + self._steps[at + size :]):
                at += size

    def _works(self, steps: Script) -> bool:
        """Whether these steps violate the same; then they are the smallest so far."""
        chance = Chance(self._seed, [self._setting, *steps])
        history = play(self._build, chance, len(steps), closely=True)
        self._left -= len(history.trace)
        same = _invariant(history) == _invariant(self._smallest)
        if same:
            self._smallest, self._steps = history, steps[: history.steps]
        return same


def _invariant(history: History) -> str | None:
    return None if history.violation is None else history.violation.invariant
