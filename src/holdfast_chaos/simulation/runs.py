"""Runs: many seeds through the worlds, until one violates something; then its history is made smaller."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast_chaos.simulation import catalog
from holdfast_chaos.simulation.scheduler import Chance, Script
from holdfast_chaos.simulation.world import Build, WorldHistory, play, silence

_LINES = 12_000
"""How much is played at most."""


def shrink(build: Build, seed: int, found: WorldHistory) -> WorldHistory:
    """The smallest history that leaving out steps leads to, within a bounded effort."""
    return _Shrinking(build, seed, found).run()


class _Shrinking:
    def __init__(self, build: Build, seed: int, found: WorldHistory) -> None:
        self._build, self._seed, self._smallest = build, seed, found
        self._setting, *steps = found.script
        self._steps: Script = steps[: found.steps]
        self._left = _LINES

    def run(self) -> WorldHistory:
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


def _invariant(history: WorldHistory) -> str | None:
    return None if history.violation is None else history.violation.invariant


STEPS = 200


@dataclass(frozen=True, slots=True)
class Found:
    """The first violation."""

    world: str
    seed: int
    invariant: str
    message: str
    steps: int
    """How many it took from this seed."""
    history: list[str]
    """The smallest history that shows it, one line for each step."""


@dataclass(slots=True)
class SeedsOutcome:
    """What a run did."""

    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    """Of this process's own time."""
    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    """Steps by what was done, for each world."""
    happenings: dict[str, Counter[str]] = field(default_factory=dict)
    """What came of them: faults, refusals, fates."""
    found: Found | None = None

    @property
    def steps_per_second(self) -> float:
        """How fast it was."""
        return self.steps / self.seconds if self.seconds else 0.0

    @property
    def seeds_per_minute(self) -> float:
        """How fast it was, every world of a seed counted in."""
        return 60 * self.seeds / self.seconds if self.seconds else 0.0


def simulate(
    seeds: Iterable[int],
    worlds: Sequence[str] = catalog.WORLDS,
    *,
    defect: str | None = None,
    steps: int = STEPS,
) -> SeedsOutcome:
    """Play every seed in every world; ends at the first violation. With `defect`, in that one's world."""
    builds = dict(_builds(worlds, defect))
    outcome, began = SeedsOutcome(), time.process_time()
    with silence():
        for seed in seeds:
            outcome.seeds += 1
            for name, build in builds.items():
                history = play(build, Chance(seed), steps)
                _add(outcome, name, history)
                if history.violation is not None:
                    outcome.seconds = time.process_time() - began
                    outcome.found = _found(name, build, seed, history)
                    return outcome
    outcome.seconds = time.process_time() - began
    return outcome


def trace(world: str, seed: int, *, defect: str | None = None, steps: int = STEPS) -> list[str]:
    """Everything that happens from one seed, line by line."""
    [(_, build)] = _builds([world], defect)
    with silence():
        return play(build, Chance(seed), steps).trace


def _builds(worlds: Sequence[str], defect: str | None) -> Iterator[tuple[str, Build]]:
    if defect is not None:
        weak = catalog.defect(defect)
        yield weak.world, weak.build
        return
    for name in worlds:
        yield name, catalog.world(name)


def _add(outcome: SeedsOutcome, name: str, history: WorldHistory) -> None:
    scheduler = history.world.scheduler
    outcome.steps += len(scheduler.trace)
    outcome.kinds.setdefault(name, Counter()).update(scheduler.kinds)
    outcome.happenings.setdefault(name, Counter()).update(scheduler.happenings)


def _found(name: str, build: Build, seed: int, history: WorldHistory) -> Found:
    small = shrink(build, seed, history)
    violation = small.violation or history.violation
    assert violation is not None  # noqa: S101 - there is one, or nobody would ask
    return Found(name, seed, violation.invariant, violation.message, history.steps, small.trace)
