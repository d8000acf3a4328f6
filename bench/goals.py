"""The project's goals, and how the medians stand against them. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from .runner import Results

Against = Literal["peer", "limit"]
LEVEL = 1.3
"""Two medians closer than this factor are level: the spread of one machine is no smaller."""


@dataclass(frozen=True)
class Goal:
    """Our median over theirs must be at least, or for latencies at most, `factor`."""

    measure: str
    against: Against
    factor: float
    text: str

    def met(self, ratio: float) -> bool:
        return ratio <= self.factor if is_latency(self.measure) else ratio >= self.factor


GOALS: dict[str, list[Goal]] = {
    "postgres": [
        Goal("publish_one", "peer", 1 / LEVEL, "level with the best peer"),
        Goal("publish_bulk", "peer", 2.0, "≥ 2× the best peer"),
        Goal("consume_1", "peer", 3.0, "≥ 3× the best peer"),
        Goal("consume_1", "limit", 0.5, "≥ 0.5× the limit"),
        Goal("latency_p99", "peer", 1.0, "≤ the best peer"),
    ],
    "redis": [Goal("consume_1", "peer", 2.0, "≥ 2× the best peer")],
    "nats": [],
}
"""By store. On NATS there is no peer to beat."""


def is_latency(measure: str) -> bool:
    return measure.startswith("latency")


def ratio(results: Results, measure: str, against: Against) -> float | None:
    """Our median over the best median in that role; None where one of them was not measured."""
    ours = medians(results, measure, "ours")
    theirs = medians(results, measure, against)
    best: Callable[[list[float]], float] = min if is_latency(measure) else max
    return best(ours) / best(theirs) if ours and theirs else None


def medians(results: Results, measure: str, role: str) -> list[float]:
    figures = results.figures.get(measure, {})
    return [median(values) for name, values in figures.items() if results.roles[name] == role]


def verdict(goal: Goal, results: Results) -> str:
    found = ratio(results, goal.measure, goal.against)
    if found is None:
        return "not measured"
    return "ok" if goal.met(found) else "miss"
