"""Chance: the one source of every choice, recorded step by step."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
Script = list[list[float]]
"""The numbers that were drawn, by step. The first step is the setting."""


class Chance(random.Random):
    """Draws from a seed, or from a script: what a history drew, with some of its steps left out.

    Everything that `random.Random` offers rests on `random()` here, so that one list of numbers is the whole
    history. Where a script has no more numbers, the answer is 0.
    """

    def __init__(self, seed: int, script: Script | None = None) -> None:
        super().__init__(seed)
        self.drawn: Script = []
        self.settled = False
        """From then on nothing is left to chance: every answer is 0."""
        self._script = None if script is None else iter(script)
        self._numbers: Iterator[float] = iter(())

    def begin(self) -> None:
        """The next step."""
        self.drawn.append([])
        if self._script is not None:
            self._numbers = iter(next(self._script, []))

    def random(self) -> float:
        """From 0 to below 1."""
        if self.settled:
            return 0.0
        number = super().random() if self._script is None else next(self._numbers, 0.0)
        self.drawn[-1].append(number)
        return number

    def pick(self, items: Sequence[T]) -> T:
        """One of them."""
        return items[int(self.random() * len(items))]

    def below(self, end: int) -> int:
        """A whole number from 0."""
        return int(self.random() * end)
