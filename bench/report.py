"""The results, as a table for people and as JSON for programs."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from .goals import GOALS, is_latency, ratio, verdict
from .measures import Plan
from .runner import Results

WIDTH = 180
LABELS = {
    "publish_one": "publish one, events/s",
    "publish_bulk": "publish bulk, events/s",
    "consume_1": "consume, 1 process, events/s",
    "consume_2": "consume, 2 processes, events/s",
    "latency_p50": "latency p50, ms",
    "latency_p99": "latency p99, ms",
}
PACKAGES = {
    "postgres": ["holdfast", "pgqueuer", "procrastinate", "psycopg", "asyncpg", "uvloop"],
    "redis": ["holdfast", "dramatiq", "taskiq", "taskiq-redis", "celery", "rq", "redis", "hiredis", "uvloop"],
    "nats": ["holdfast", "nats-py", "uvloop"],
}


def show(store: str, results: Results) -> None:
    """Print the table of one store; failures go below it."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table(store, results))
    for failure in results.failures:
        console.print(f"failed: {failure}", style="red", markup=False, highlight=False)


def table(store: str, results: Results) -> Table:
    shown = Table(title=f"{store}: median over the rounds (min – max)", show_lines=True)
    shown.add_column("measure")
    for name in results.roles:
        shown.add_column(name, justify="right", no_wrap=True)
    for heading in ("holdfast / best peer", "holdfast / limit"):
        shown.add_column(heading, justify="right")
    shown.add_column("goal")
    for measure in results.figures:
        shown.add_row(*row(store, results, measure))
    return shown


def row(store: str, results: Results, measure: str) -> list[str]:
    figures = results.figures[measure]
    cells = [cell(measure, figures.get(name, [])) for name in results.roles]
    ratios = [ratio(results, measure, "peer"), ratio(results, measure, "limit")]
    goals = [f"{goal.text}: {verdict(goal, results)}" for goal in GOALS[store] if goal.measure == measure]
    return [LABELS[measure], *cells, *map(times, ratios), "\n".join(goals)]


def cell(measure: str, values: list[float]) -> str:
    if not values:
        return "–"
    digits = 1 if is_latency(measure) else 0
    low, mid, high = (f"{value:,.{digits}f}" for value in (min(values), median(values), max(values)))
    return f"{mid}\n({low} – {high})"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def as_json(store: str, results: Results, plan: Plan, server: dict[str, str]) -> dict[str, Any]:
    return {
        "environment": environment(store, server),
        "plan": asdict(plan),
        "measures": {name: measured(results, name) for name in results.figures},
        "goals": [asdict(goal) | {"verdict": verdict(goal, results)} for goal in GOALS[store]],
        "failures": results.failures,
    }


def measured(results: Results, measure: str) -> dict[str, Any]:
    figures = {
        name: {"median": median(values), "min": min(values), "max": max(values), "rounds": values}
        for name, values in results.figures[measure].items()
    }
    ratios = {against: ratio(results, measure, against) for against in ("peer", "limit")}
    return {"contestants": figures, "ratios": ratios}


def environment(store: str, server: dict[str, str]) -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "server": server,
        "packages": {name: installed(name) for name in PACKAGES[store]},
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
