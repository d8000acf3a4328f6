"""The goals for the backlog on each store, and how the figures stand against them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

OURS = "holdfast"
CURRENT = 5.0
"""Seconds that a reader of the log may be behind. A write has to be held open for longer to show it."""
READERS = "unread", "extent"
PUBLISHED = "single", "bulk"
COUNTS = "backlogs", "consumer_stats", "job_times", "dead_counts"
SLOWER = 1.3
"""How many times as long a publish may take where there are many consumers."""
Figures = dict[str, dict[str, list[float]]]
"""By figure and contestant, one for each round."""


@dataclass(frozen=True)
class Goal:
    """Our median must be at least `bound`; with `most` at most.

    With `beside` it is its ratio to the best median of these contestants, with `over` its ratio to another
    one of our figures.
    """

    figure: str
    bound: float
    text: str
    beside: tuple[str, ...] = ()
    most: bool = False
    over: str = ""

    def value(self, figures: Figures) -> float | None:
        """None where something that it needs was not measured."""
        if self.beside:
            return ratio(figures, self.figure, self.beside, least=self.most)
        ours = _median(figures, self.figure, OURS)
        if not self.over:
            return ours
        other = _median(figures, self.over, OURS)
        return ours / other if ours is not None and other else None

    def verdict(self, figures: Figures) -> str:
        value = self.value(figures)
        if value is None:
            return "not measured"
        return "ok" if (value <= self.bound if self.most else value >= self.bound) else "miss"


def ratio(figures: Figures, figure: str, beside: Sequence[str], *, least: bool = False) -> float | None:
    """Our median to the largest of the others' medians, or to the least; None where one side is missing."""
    ours = _median(figures, figure, OURS)
    found = [_median(figures, figure, name) for name in beside]
    theirs = [value for value in found if value]
    if ours is None or not theirs:
        return None
    return ours / (min(theirs) if least else max(theirs))


def _median(figures: Figures, figure: str, contestant: str) -> float | None:
    values = figures.get(figure, {}).get(contestant)
    return median(values) if values else None


# PostgreSQL


def _consume() -> list[Goal]:
    return [
        goal
        for published in PUBLISHED
        for processes, factor in ((1, 5.0), (2, 4.0))
        for goal in (
            Goal(f"consume_{published}_{processes}", factor, f"≥ {factor:.0f} × pgqueuer", ("pgqueuer",)),
            Goal(f"consume_{published}_{processes}", 1.0, "≥ 1.0 × the limit row by row", ("limit",)),
        )
    ]


def _costs() -> list[Goal]:
    return [
        goal
        for published in PUBLISHED
        for goal in (
            Goal(f"server_{published}", 4.0, "≤ 4 µs", most=True),
            Goal(f"client_{published}", 6.0, "≤ 6 µs", most=True),
            Goal(f"wal_{published}", 1 / 3, "≤ a third of before", ("before",), most=True),
        )
    ]


def _snapshot() -> list[Goal]:
    return [
        goal
        for published in PUBLISHED
        for goal in (
            Goal(f"last_to_first_held_{published}", 0.85, "≥ 0.85"),
            Goal(f"dead_held_{published}", 20.0, "≤ 20", most=True),
        )
    ]


POSTGRES = [
    *_consume(),
    *_costs(),
    *(
        Goal(f"handlers_{milliseconds}", 0.95, "no slower than before: ≥ 0.95 ×", ("before",))
        for milliseconds in (1, 5, 50)
    ),
    Goal("publish_one", 1.0, "≥ 1.0 × pgqueuer", ("pgqueuer",)),
    Goal("publish_one", 0.75, "≥ 0.75 × the limit row by row", ("limit",)),
    Goal("publish_16", 0.7, "≥ 0.7 × the limit by ranges, which announces apart", ("ranges",)),
    Goal("publish_bulk", 3.0, "≥ 3 × pgqueuer", ("pgqueuer",)),
    *(Goal(f"{name}_{number}_to_1", 0.8, "≥ 0.8") for name in ("one", "100") for number in ("10", "many")),
    Goal("latency_p99", 1.0, "≤ pgqueuer", ("pgqueuer",), most=True),
    Goal("rest", 2.0, "≥ 2 × before", ("before",)),
    Goal("rest_p99", 1.0, "no worse than before", ("before",), most=True),
    *_snapshot(),
    *(Goal(f"{what}_held_max", CURRENT, f"stays current: ≤ {CURRENT:.0f} s", most=True) for what in READERS),
]


# Redis and NATS


def _throughput(of_limit: float) -> list[Goal]:
    return [
        goal
        for published in PUBLISHED
        for goal in (
            Goal(f"consume_{published}_1", of_limit, f"≥ {of_limit} × the limit", ("limit",)),
            Goal(f"consume_{published}_2", 1.3, "≥ 1.3 × one process", over=f"consume_{published}_1"),
        )
    ]


def _scale(sweep: float) -> list[Goal]:
    """Of many consumers and many channels."""
    return [
        *(
            Goal(f"{name}_many_to_1", 1 / SLOWER, f"≥ {1 / SLOWER:.2f}: takes ≤ {SLOWER} × as long")
            for name in ("one", "100")
        ),
        Goal("metrics", 1.0, "≤ 1 s", most=True),
        Goal("sweep", sweep, f"≤ {sweep:.0f} s", most=True),
    ]


REDIS = [
    *_throughput(0.35),
    Goal("publish_one", 1.0, "≥ 1.0 × the best peer", ("dramatiq", "taskiq")),
    Goal("latency_p99", 1.2, "≤ 1.2 × taskiq", ("taskiq",), most=True),
    *(
        Goal(f"{count}_{which}", 10.0, "≤ 10 ms", most=True)
        for count in COUNTS
        for which in ("first", "median")
    ),
    Goal("bytes_per_job", 10.0, "≤ 10 bytes", most=True),
    *_scale(1.0),
]
NATS = [
    *_throughput(0.4),
    Goal("publish_one", 0.5, "≥ 0.5 × a batch of two messages", ("atomic",)),
    Goal("latency_p99", 5.0, "≤ 5 × the limit", ("limit",), most=True),
    Goal("connect_waiting", 2.0, "≤ 2 s", most=True),
    Goal("poll_waiting", 0.2, "≤ 0.2 s", most=True),
    Goal("memory_above", 20.0, "≤ 20 MB", most=True),
    *_scale(2.0),
]
GOALS: dict[str, list[Goal]] = {"postgres": POSTGRES, "redis": REDIS, "nats": NATS}
"""By store."""

_BESIDE = {"1": "one consumer", "10": "10 consumers", "many": "many consumers"}
LABELS: dict[str, str] = {
    **{
        f"consume_{published}_{number}": f"consume {published} jobs, {number} worker{'s' * (number > 1)}, /s"
        for published in PUBLISHED
        for number in (1, 2)
    },
    **{
        f"{kind}_{published}": f"{label}, {published}"
        for kind, label in (
            ("server", "server CPU, µs/job"),
            ("client", "client CPU, µs/job"),
            ("wal", "WAL, bytes/job"),
        )
        for published in PUBLISHED
    },
    "handlers_1": "handlers of 1 ms, 32 at once, /s (at most 32,000)",
    "handlers_5": "handlers of 5 ms, /s (at most 6,400)",
    "handlers_50": "handlers of 50 ms, /s (at most 640)",
    "publish_one": "publish one by one, /s",
    "publish_16": "publish, 16 at once, /s",
    "publish_bulk": "publish in bulk, events/s",
    **{
        f"{name}_beside_{number}": f"{label} with {consumers}, events/s"
        for name, label in (("one", "publish one"), ("100", "publish a bulk of 100"))
        for number, consumers in _BESIDE.items()
    },
    **{
        f"{name}_{number}_to_1": f"{label}: {_BESIDE[number]} to one"
        for name, label in (("one", "publish one"), ("100", "publish a bulk of 100"))
        for number in ("10", "many")
    },
    "latency_p50": "latency p50, ms",
    "latency_p99": "latency p99, ms",
    "rest": "publish over REST, 64 callers at once, /s",
    "rest_p50": "… one call p50, ms",
    "rest_p99": "… one call p99, ms",
    **{
        f"{count}_{which}": f"many jobs wait: {count}, {label}, ms"
        for count in COUNTS
        for which, label in (("first", "first call"), ("median", "median"))
    },
    "connect_empty": "empty store: a new process connects, s",
    "connect_waiting": "many jobs wait: a new process connects, s",
    "poll_waiting": "… and has polled, s",
    "memory_above": "… and has more memory than with an empty store, MB",
    "bytes_per_job": "server memory of each further consumer, bytes/job",
    "metrics": "many consumers: the slowest scrape of three, s",
    "sweep": "many channels: the slowest sweep of three, s",
    **{
        f"{kind}_{held}_{published}": f"drain of {published} jobs, {state}: {label}"
        for published in PUBLISHED
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
