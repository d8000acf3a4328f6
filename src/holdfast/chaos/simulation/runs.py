"""Runs: many seeds through the worlds, until one of them violates something."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.chaos.simulation import catalog
from holdfast.chaos.simulation.chance import Chance
from holdfast.chaos.simulation.shrinking import shrink
from holdfast.chaos.simulation.world import Build, History, play, silence

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
class Outcome:
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
) -> Outcome:
    """Play every seed in every world; ends at the first violation. With `defect`, in that one's world."""
    builds = dict(_builds(worlds, defect))
    outcome, began = Outcome(), time.process_time()
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


def _add(outcome: Outcome, name: str, history: History) -> None:
    stage = history.world.stage
    outcome.steps += len(stage.trace)
    outcome.kinds.setdefault(name, Counter()).update(stage.kinds)
    outcome.happenings.setdefault(name, Counter()).update(stage.happenings)


def _found(name: str, build: Build, seed: int, history: History) -> Found:
    small = shrink(build, seed, history)
    violation = small.violation or history.violation
    assert violation is not None  # noqa: S101 - there is one, or nobody would ask
    return Found(name, seed, violation.invariant, violation.message, history.steps, small.trace)
