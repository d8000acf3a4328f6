"""The scheduler: a virtual clock, the trace, and who is next. One actor at a time, one step at a time.

Chance is the one source of every choice, recorded step by step.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from holdfast.model.errors import Unavailable
from holdfast_chaos import Violation

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
        """One of the items."""
        return items[int(self.random() * len(items))]

    def below(self, end: int) -> int:
        """A whole number from 0."""
        return int(self.random() * end)


BEGINNING = datetime(2030, 1, 1, tzinfo=UTC)
_TIME, _CRASH = 0.10, 0.04
_REFUSED, _UNANSWERED = 0.02, 0.03
_SPANS = (1, 3, 10, 30, 60, 300)


class Actor(Protocol):
    """Somebody who runs one run_once after the other, and waits at every call that leaves the process."""

    name: str
    heals: bool
    """Whether it goes on working while the backlog drains."""

    @property
    def busy(self) -> bool:
        """Whether an run_once is under way."""

    def resume(self) -> str:
        """Go on until the next call. Returns which one was made."""

    def crash(self) -> None:
        """Forget everything, right where it stands."""

    def close(self) -> None:
        """End it for good."""


class Scheduler:
    """What everybody shares: time, chance, faults, and what is written down."""

    def __init__(self, chance: Chance, spans: Sequence[int] = _SPANS) -> None:
        self.chance, self.now, self.calm = chance, BEGINNING, False
        self.trace: list[str] = []
        self.kinds: Counter[str] = Counter()
        """Steps, by what was done."""
        self.happenings: Counter[str] = Counter()
        """What came of them."""
        self.violation: Violation | None = None
        self._spans, self._notes = spans, list[str]()

    def clock(self) -> datetime:
        """The virtual time."""
        return self.now

    def say(self, note: str) -> None:
        """Add to the line of this step."""
        self._notes.append(note)

    def count(self, kind: str) -> None:
        """Something worth counting besides the steps."""
        self.happenings[kind] += 1

    def violate(self, invariant: str, message: str) -> None:
        """An invariant does not hold; the first one ends the history after this step."""
        if self.violation is None:
            self.violation = Violation(invariant, message)
        self.say(f"!! {invariant}: {message}")

    def happens(self, share: float) -> bool:
        """Whether something that happens so often happens now; nothing does once it is calm."""
        return not self.calm and self.chance.random() < share

    def refuse(self, verb: str) -> None:
        """A call may not arrive: nothing is changed."""
        if self.happens(_REFUSED):
            self.count("not arrived")
            raise Unavailable(f"{verb} did not arrive")

    def lose(self, verb: str) -> None:
        """An answer may be lost: what was asked for is done, and the caller does not know it."""
        if self.happens(_UNANSWERED):
            self.count("answer lost")
            raise Unavailable(f"the answer to {verb} was lost")

    def step(self, actors: Sequence[Actor]) -> None:
        """Let time pass, an actor crash, or an actor go on."""
        roll = self.chance.random()
        if roll < _TIME:
            self._pass_time()
            return
        actor = self.chance.pick(actors)
        if roll < _TIME + _CRASH and actor.busy:
            actor.crash()
            self._write(actor.name, "crash")
        else:
            self._write(actor.name, actor.resume())

    def finish(self, actor: Actor, most: int = 10_000) -> None:
        """Let an actor run its run_once to the end."""
        for _ in range(most):
            self._write(actor.name, actor.resume())
            if not actor.busy or self.violation is not None:
                return
        self.violate("I15", f"{actor.name} did not come to an end within {most} calls")

    def conclude(self) -> None:
        """What was said outside of any step stands last."""
        if self._notes:
            self.trace.append(f"{self.now - BEGINNING} judge: {'; '.join(self._notes)}")

    def _pass_time(self) -> None:
        seconds = self.chance.pick(self._spans) * (0.5 + self.chance.random())
        self.now += timedelta(seconds=round(seconds, 1))
        self._write("time", "passes")

    def _write(self, who: str, what: str) -> None:
        self.kinds[what] += 1
        notes = "; ".join(self._notes)
        self.trace.append(f"{self.now - BEGINNING} {who} {what}{': ' if notes else ''}{notes}")
        self._notes.clear()
