"""The goals for the backlog on PostgreSQL, and how the figures stand against them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

OURS = "holdfast"
CURRENT = 5.0
"""Seconds that a reader of the log may be behind. A write has to be held open for longer to show it."""
READERS = "unread", "extent"
Figures = dict[str, dict[str, list[float]]]
"""By figure and contestant, one for each round."""


@dataclass(frozen=True)
class Goal:
    """Our median, or its ratio to that of `beside`, must be at least `bound`; with `most` at most."""

    figure: str
    bound: float
    text: str
    beside: str = ""
    most: bool = False

    def value(self, figures: Figures) -> float | None:
        """None where something that it needs was not measured."""
        if self.beside:
            return ratio(figures, self.figure, self.beside)
        values = figures.get(self.figure, {}).get(OURS)
        return median(values) if values else None

    def verdict(self, figures: Figures) -> str:
        value = self.value(figures)
        if value is None:
            return "not measured"
        return "ok" if (value <= self.bound if self.most else value >= self.bound) else "miss"


def ratio(figures: Figures, figure: str, beside: str) -> float | None:
    ours, theirs = (figures.get(figure, {}).get(name) for name in (OURS, beside))
    return median(ours) / median(theirs) if ours and theirs and median(theirs) else None


def _consume() -> list[Goal]:
    return [
        goal
        for published in ("single", "bulk")
        for processes, factor in ((1, 5.0), (2, 4.0))
        for goal in (
            Goal(f"consume_{published}_{processes}", factor, f"≥ {factor:.0f} × pgqueuer", "pgqueuer"),
            Goal(f"consume_{published}_{processes}", 1.0, "≥ 1.0 × the limit row by row", "limit"),
        )
    ]


def _costs() -> list[Goal]:
    return [
        goal
        for published in ("single", "bulk")
        for goal in (
            Goal(f"server_{published}", 4.0, "≤ 4 µs", most=True),
            Goal(f"client_{published}", 6.0, "≤ 6 µs", most=True),
            Goal(f"wal_{published}", 1 / 3, "≤ a third of before", "before", most=True),
        )
    ]


def _snapshot() -> list[Goal]:
    return [
        goal
        for published in ("single", "bulk")
        for goal in (
            Goal(f"last_to_first_held_{published}", 0.85, "≥ 0.85"),
            Goal(f"dead_held_{published}", 20.0, "≤ 20", most=True),
        )
    ]


GOALS: list[Goal] = [
    *_consume(),
    *_costs(),
    *(
        Goal(f"handlers_{milliseconds}", 0.95, "no slower than before: ≥ 0.95 ×", "before")
        for milliseconds in (1, 5, 50)
    ),
    Goal("publish_one", 1.0, "≥ 1.0 × pgqueuer", "pgqueuer"),
    Goal("publish_one", 0.75, "≥ 0.75 × the limit row by row", "limit"),
    Goal("publish_16", 0.7, "≥ 0.7 × the limit by ranges, which announces apart", "ranges"),
    Goal("publish_bulk", 3.0, "≥ 3 × pgqueuer", "pgqueuer"),
    *(Goal(f"{name}_{number}_to_1", 0.8, "≥ 0.8") for name in ("one", "100") for number in (10, 1_000)),
    Goal("latency_p99", 1.0, "≤ pgqueuer", "pgqueuer", most=True),
    *_snapshot(),
    *(Goal(f"{what}_held_max", CURRENT, f"stays current: ≤ {CURRENT:.0f} s", most=True) for what in READERS),
]

LABELS: dict[str, str] = {
    **{
        f"consume_{published}_{number}": f"consume {published} jobs, {number} worker{'s' * (number > 1)}, /s"
        for published in ("single", "bulk")
        for number in (1, 2)
    },
    **{
        f"{kind}_{published}": f"{label}, {published}"
        for kind, label in (
            ("server", "server CPU, µs/job"),
            ("client", "client CPU, µs/job"),
            ("wal", "WAL, bytes/job"),
        )
        for published in ("single", "bulk")
    },
    "handlers_1": "handlers of 1 ms, 32 at once, /s (at most 32,000)",
    "handlers_5": "handlers of 5 ms, /s (at most 6,400)",
    "handlers_50": "handlers of 50 ms, /s (at most 640)",
    "publish_one": "publish one by one, /s",
    "publish_16": "publish, 16 at once, /s",
    "publish_bulk": "publish in bulk, events/s",
    **{
        f"{name}_beside_{number}": f"{label} with {number:,} consumer{'s' * (number > 1)}, events/s"
        for name, label in (("one", "publish one"), ("100", "publish a bulk of 100"))
        for number in (1, 10, 1_000)
    },
    **{
        f"{name}_{number}_to_1": f"{label}: {number:,} consumers to one"
        for name, label in (("one", "publish one"), ("100", "publish a bulk of 100"))
        for number in (10, 1_000)
    },
    "latency_p50": "latency p50, ms",
    "latency_p99": "latency p99, ms",
    **{
        f"{kind}_{held}_{published}": f"drain of {published} jobs, {state}: {label}"
        for published in ("single", "bulk")
        for held, state in (("free", "no snapshot"), ("held", "a snapshot held open"))
        for kind, label in (
            ("first", "the first, /s"),
            ("last", "the last, /s"),
            ("last_to_first", "last to first"),
            ("dead", "dead tuples per 1,000 jobs"),
        )
    },
    **{
        f"{kind}_{held}_{what}": f"{state}: {label}, {'the most' if what == 'max' else 'median'}, s"
        for held, state in (("free", "no write open"), ("held", "a write held open"))
        for kind, label in (("unread", "age of the oldest unread"), ("extent", "… beyond the log's extent"))
        for what in ("max", "p50")
    },
}
"""What each figure is called, in the order of the report."""
