"""A figure: something beside ours, round by round, and a goal for the two."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass
class Figure:
    """Something beside ours, round by round; and whether the ratio of the medians reaches the goal."""

    unit: str
    beside: str
    goal: float
    """0: there is none, it only stands beside."""
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    more: dict[str, float] = field(default_factory=dict)
    lower: bool = False
    """Whether less is better, as with times."""

    @property
    def ratio(self) -> float:
        theirs, ours = median(self.theirs), median(self.ours)
        return theirs / ours if self.lower else ours / theirs

    def cells(self) -> list[str]:
        verdict = "ok" if self.ratio >= self.goal else "miss"
        more = ", ".join(f"{name} {value:,.0f}" for name, value in self.more.items())
        shown = [_cell(values, self.unit) for values in (self.theirs, self.ours)]
        return [
            f"{self.beside}\n{shown[0]}",
            shown[1],
            f"{self.ratio:,.2f}×",
            f"≥ {self.goal:,.4g}×: {verdict}" if self.goal else "",
            more,
        ]

    def document(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": self.ratio, "met": self.ratio >= self.goal}


Figures = dict[str, Figure]
"""By name."""


def _cell(values: list[float], unit: str) -> str:
    digits = 0 if min(values) >= 100 else 2
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{middle} {unit}\n({low} – {high})"
