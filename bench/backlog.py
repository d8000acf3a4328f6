# ruff: noqa: E402
"""The backlog on each store, against the project's goals: `python bench/backlog.py --help`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import orjson
import uvloop
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from bench.backlog_goals import CURRENT, GOALS, LABELS, OURS, PUBLISHED, Figures, ratio
from bench.cli import chosen
from bench.contestants import CONTESTANTS
from bench.report import environment
from bench.sizes import SMOKE, Sizes
from bench.stores import STORES, Store

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 200
TARGETS: dict[str, str] = {
    "pgqueuer": CONTESTANTS["postgres"]["pgqueuer"],
    "ranges": "bench.contestants.limit_ranges:Ranges",
    "dramatiq": CONTESTANTS["redis"]["dramatiq"],
    "taskiq": CONTESTANTS["redis"]["taskiq"],
    "atomic": "bench.contestants.atomic_nats:Atomic",
}
"""Those that are on one store only."""
NAMES = OURS, "before", *TARGETS, "limit"
VERSIONS = OURS, "before"
WITH_LIMIT = *VERSIONS, "limit"
ON_POSTGRES = *VERSIONS, "pgqueuer", "limit", "ranges"
LONGEST = 7_200.0
"""Seconds of one turn."""


@dataclass(frozen=True)
class Measure:
    contestants: Mapping[str, tuple[str, ...]]
    """By store."""
    once: bool = False
    """In the first round only: it takes long, or its figures compare parts of one run."""


EVERYBODY = {"postgres": ON_POSTGRES, "redis": WITH_LIMIT, "nats": WITH_LIMIT}
ALONE = dict.fromkeys(STORES, VERSIONS)
MEASURES: dict[str, Measure] = {
    **{f"consume_{how}_{number}": Measure(EVERYBODY) for how in PUBLISHED for number in (1, 2)},
    **{f"costs_{how}": Measure({"postgres": ON_POSTGRES}) for how in PUBLISHED},
    **{f"handlers_{milliseconds}": Measure(ALONE) for milliseconds in (1, 5, 50)},
    "publish_one": Measure(
        {
            "postgres": ON_POSTGRES,
            "redis": (*WITH_LIMIT, "dramatiq", "taskiq"),
            "nats": (*WITH_LIMIT, "atomic"),
        }
    ),
    "publish_at_once": Measure(EVERYBODY),
    "publish_bulk": Measure(EVERYBODY),
    "beside_consumers": Measure(ALONE),
    "latency": Measure(
        {"postgres": (*WITH_LIMIT, "pgqueuer"), "redis": (*WITH_LIMIT, "taskiq"), "nats": WITH_LIMIT}
    ),
    "rest": Measure(ALONE),
    "waiting": Measure(ALONE, once=True),
    "memory": Measure({"redis": VERSIONS}, once=True),
    "scrape": Measure(ALONE, once=True),
    "sweep": Measure(ALONE, once=True),
    **{
        f"{kind}_{how}": Measure({"postgres": (OURS,)}, once=True)
        for how in PUBLISHED
        for kind in ("free", "held")
    },
    "beside_write": Measure({"postgres": (OURS,)}, once=True),
}


def target(store: str, contestant: str) -> str:
    """The class of a contestant on a store."""
    return TARGETS.get(contestant) or CONTESTANTS[store]["limit" if contestant == "limit" else OURS]


class TurnError(Exception):
    """A turn ended without figures."""


@dataclass
class Run:
    """The figures so far, and what went wrong."""

    figures: Figures = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, contestant: str, found: dict[str, float]) -> None:
        for figure, value in found.items():
            self.figures.setdefault(figure, defaultdict(list))[contestant].append(value)


def arguments() -> argparse.ArgumentParser:
    default = Sizes()
    parser = argparse.ArgumentParser(description="The backlog on each store, against the project's goals.")
    parser.add_argument("--store", choices=[*STORES, "all"], default="all")
    parser.add_argument("--events", type=int, help=f"in a backlog, and in one bulk; {default.events:,}")
    parser.add_argument("--rounds", type=int, help=f"{default.rounds}")
    parser.add_argument(
        "--count",
        type=int,
        help=f"jobs that wait while they are counted ({default.waiting:,}), and bulk jobs that are drained "
        f"beside a snapshot ({default.count:,})",
    )
    parser.add_argument(
        "--single-count", type=int, help=f"single jobs drained beside a snapshot; {default.single_count:,}"
    )
    parser.add_argument("--consumers", type=int, help=f"where there are many; {default.consumers:,}")
    parser.add_argument("--channels", type=int, help=f"where there are many; {default.channels:,}")
    parser.add_argument("--calls", type=int, help=f"of each of 64 callers over REST; {default.calls:,}")
    parser.add_argument(
        "--seconds", type=float, help=f"that a write is held open; {default.write_seconds:.0f}"
    )
    parser.add_argument("--only", metavar="NAME,...", help=f"only these of {', '.join(NAMES)}")
    parser.add_argument("--measures", metavar="NAME,...", help=f"only these of {', '.join(MEASURES)}")
    parser.add_argument(
        "--before", type=Path, metavar="FOLDER", help="the src of an earlier version, measured as `before`"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--smoke", action="store_true", help="small and quick: does everything run?")
    return parser


def sizes_from(options: argparse.Namespace) -> Sizes:
    given = {
        "events": options.events,
        "rounds": options.rounds,
        "count": options.count,
        "waiting": options.count,
        "consumers": options.consumers,
        "channels": options.channels,
        "calls": options.calls,
        "single_count": options.single_count,
        "write_seconds": options.seconds,
    }
    if options.seconds is not None and options.seconds <= CURRENT:
        raise SystemExit(
            f"--seconds {options.seconds} shows nothing: the goal is {CURRENT} s; hold it longer"
        )
    measures = chosen(options.measures, MEASURES)
    changed = {name: value for name, value in given.items() if value is not None}
    return replace(SMOKE if options.smoke else Sizes(), measures=measures, **changed)


async def run(kind: str, store: Store, sizes: Sizes, names: list[str], before: Path | None) -> Run:
    """Every turn on a kind of store: contestants alternate within each measure, and another one begins in
    each round."""
    found = Run()
    for number in range(sizes.rounds):
        for name in sizes.measures:
            measure = MEASURES[name]
            present = [each for each in measure.contestants.get(kind, ()) if each in names]
            if not present or (measure.once and number):
                continue
            first = number % len(present)
            for contestant in present[first:] + present[:first]:
                label = f"{kind}, round {number + 1}, {name}, {contestant}"
                try:
                    async with store.empty(f"{contestant}_{name}_{number}") as url:
                        source = before if contestant == "before" else None
                        figures = await turn(target(kind, contestant), name, url, sizes, source)
                except Exception as error:
                    found.failures.append(f"{label}: {type(error).__name__}: {error}")
                    tell(f"failed: {found.failures[-1]}")
                    continue
                found.add(contestant, figures)
                tell(f"{label}: " + ", ".join(shown(value) for value in figures.values()))
    return found


async def turn(target: str, measure: str, url: str, sizes: Sizes, source: Path | None) -> dict[str, float]:
    """One turn of a contestant's class, with another version's code where `source` names its folder."""
    paths = [str(source)] if source else []
    inherited = os.environ.get("PYTHONPATH")
    own = {"PYTHONPATH": os.pathsep.join([*paths, *([inherited] if inherited else [])])}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.turn", target, measure, url),
        orjson.dumps(asdict(sizes)).decode(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | own,
    )
    try:
        async with asyncio.timeout(LONGEST):
            printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise TurnError("\n".join(errors.decode().splitlines()[-4:]))
    return dict(orjson.loads(printed))


def table(kind: str, found: Run) -> Table:
    present = [name for name in NAMES if any(name in by_name for by_name in found.figures.values())]
    others = [name for name in present if name != OURS]
    shown_ = Table(title=f"the backlog on {kind}: median over the rounds (min – max)", box=SIMPLE_HEAD)
    shown_.add_column("")
    for name in present:
        shown_.add_column(name, justify="right", no_wrap=True)
    for name in others:
        shown_.add_column(f"to {name}", justify="right")
    shown_.add_column("goal")
    for figure in sorted(found.figures, key=list(LABELS).index):
        by_name = found.figures[figure]
        ratios = [ratio(found.figures, figure, [name]) for name in others]
        goals = [
            f"{goal.text}: {goal.verdict(found.figures)}" for goal in GOALS[kind] if goal.figure == figure
        ]
        shown_.add_row(
            LABELS[figure],
            *(cell(by_name.get(name, [])) for name in present),
            *("–" if value is None else f"{shown(value)}×" for value in ratios),
            "\n".join(goals),
        )
    return shown_


def cell(values: list[float]) -> str:
    if not values:
        return "–"
    middle = shown(median(values))
    return middle if len(values) == 1 else f"{middle}\n({shown(min(values))} – {shown(max(values))})"


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def summary(kind: str, figures: Figures) -> list[str]:
    """The goals by how they stand, each with its name and value."""
    lines, goals = [], GOALS[kind]
    for verdict in ("ok", "miss", "not measured"):
        named = [
            f"  {LABELS[goal.figure]}: {goal.text}" + ("" if value is None else f" (is {shown(value)})")
            for goal in goals
            if goal.verdict(figures) == verdict
            for value in [goal.value(figures)]
        ]
        if named:
            lines += [f"{verdict}: {len(named)} of {len(goals)} goals", *named]
    return lines


def document(kind: str, found: Run, sizes: Sizes, server: dict[str, str]) -> dict[str, Any]:
    return {
        "environment": environment(kind, server),
        "sizes": asdict(sizes),
        "figures": found.figures,
        "goals": [
            asdict(goal) | {"value": goal.value(found.figures), "verdict": goal.verdict(found.figures)}
            for goal in GOALS[kind]
        ],
        "failures": found.failures,
    }


async def measured(
    kind: str, sizes: Sizes, names: list[str], before: Path | None
) -> tuple[Run, dict[str, str]]:
    """All turns on one store, and what its server says of itself."""
    with STORES[kind]() as store:
        return await run(kind, store, sizes, names, before), await store.describe()


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """0 when everything ran and no event was lost, whatever the goals say; 1 otherwise."""
    options = arguments().parse_args()
    sizes, names = sizes_from(options), chosen(options.only, NAMES)
    if options.before is None:
        names = [name for name in names if name != "before"]
    elif not (options.before / "holdfast" / "__init__.py").exists():
        raise SystemExit(f"{options.before} holds no holdfast; name the src folder of another version")
    before = options.before and options.before.resolve()
    console, documents, failed = Console(), {}, False
    if not console.is_terminal:
        console.width = WIDTH
    for kind in STORES if options.store == "all" else [options.store]:
        found, server = uvloop.run(measured(kind, sizes, names, before))
        console.print(table(kind, found))
        for line in [*summary(kind, found.figures), *(f"failed: {failure}" for failure in found.failures)]:
            console.print(line, markup=False, highlight=False)
        documents[kind] = document(kind, found, sizes, server)
        failed = failed or bool(found.failures)
        if options.json:  # after each store: what is measured is kept, whatever comes next
            options.json.write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
