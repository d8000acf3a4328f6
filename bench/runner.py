"""Runs every measure for every contestant, in turns, and collects the figures."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from .contestants import Role, load
from .measures import MEASURES, Figures, Measure, Plan, Stage
from .stores import Store, settle

LIMIT_SECONDS = 900


@dataclass
class Results:
    """Figures by measure and contestant, one per round; and what went wrong."""

    figures: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, contestant: str, figures: Figures) -> None:
        for measure, value in figures.items():
            self.figures.setdefault(measure, defaultdict(list))[contestant].append(value)


@dataclass(frozen=True)
class Turn:
    """One contestant's turn at one measure."""

    round: int
    measure: str
    name: str
    target: str


def turns(contestants: dict[str, str], measures: list[str], rounds: int) -> list[Turn]:
    """All turns: contestants alternate within each measure, and another one begins in each round."""
    order = list(contestants.items())
    return [
        Turn(number, measure, name, target)
        for number in range(rounds)
        for measure in measures
        for name, target in order[number % len(order) :] + order[: number % len(order)]
    ]


async def perform(store: Store, turn: Turn, measure: Measure, plan: Plan) -> tuple[Role, Figures]:
    """One measure of one contestant on an empty store."""
    async with store.empty(f"{turn.name}_{turn.measure}_{turn.round}") as url:
        contestant = load(turn.target)(url)
        await contestant.setup()
        try:
            stage = Stage(contestant, turn.target, url, partial(settle, url))
            async with asyncio.timeout(LIMIT_SECONDS):
                return contestant.role, await measure(stage, plan)
        finally:
            await contestant.teardown()


async def run(store: Store, contestants: dict[str, str], plan: Plan, tell: Callable[[str], None]) -> Results:
    """Every turn in order. What fails is recorded, and the others go on."""
    results = Results()
    for turn in turns(contestants, plan.measures, plan.rounds):
        label = f"round {turn.round + 1}, {turn.measure}, {turn.name}"
        try:
            role, figures = await perform(store, turn, MEASURES[turn.measure], plan)
        except Exception as error:
            results.failures.append(f"{label}: {type(error).__name__}: {error}")
            tell(f"{label}: failed")
            continue
        results.roles[turn.name] = role
        results.add(turn.name, figures)
        tell(f"{label}: " + ", ".join(f"{value:,.1f}" for value in figures.values()))
    return results
