# ruff: noqa: E402
"""Dead letters in great numbers, on PostgreSQL: `python bench/dlq.py --help`.

counts  how many are dead, by consumer: the seed's GROUP BY beside `dead_counts` and beside the whole call
        `GET /dlq-status`, with many dead letters and with none, in turns, on the same rows;
purge   how fast workers drain a backlog, without and with a purge in chunks beside them, in turns;
publish how many events a second come in over REST: in batches beside one by one, in turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import orjson
import uvloop
from rich.console import Console
from rich.table import Table

from bench.figure import Figures
from bench.letters import counts, purge
from bench.rest import publish
from bench.stores import PostgresStore
from holdfast.embedded import Postgres

PARTS: dict[str, Callable[[PostgresStore, argparse.Namespace], Awaitable[Figures]]] = {
    "counts": counts,
    "purge": purge,
    "publish": publish,
}
WIDTH = 150


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Dead letters in great numbers, on PostgreSQL.")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--letters", type=int, default=5_000_000, help="that are counted")
    parser.add_argument("--consumers", type=int, default=20, help="that have them")
    parser.add_argument("--purged", type=int, default=1_000_000, help="that there are to purge")
    parser.add_argument("--chunk", type=int, default=1_000, help="that one step of a purge takes")
    parser.add_argument(
        "--rate",
        type=int,
        default=10_000,
        help="purged per second at the most, as the product does; 0: no limit",
    )
    parser.add_argument("--events", type=int, default=200_000, help="in the backlog of the workers")
    parser.add_argument("--processes", type=int, default=1, help="workers")
    parser.add_argument("--published", type=int, default=50_000, help="over REST in batches, in each round")
    parser.add_argument("--batch", type=int, default=1_000, help="events in one call")
    parser.add_argument("--calls", type=int, default=2_000, help="with one event each, in each round")
    parser.add_argument("--callers", type=int, default=4, help="side by side, each with a connection")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--buffers", default="2GB", help="PostgreSQL's shared_buffers")
    parser.add_argument(
        "--folder", type=Path, help="for the server; the system's folder for such things if left out"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--check", action="store_true", help="small and quick: does everything run?")
    return parser


def options() -> argparse.Namespace:
    found = arguments().parse_args()
    if found.check:
        found.letters, found.purged, found.events, found.buffers = 20_000, 40_000, 5_000, "256MB"
        found.published, found.calls, found.rounds = 2_000, 200, 1
    if unknown := set(found.parts.split(",")) - set(PARTS):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    return found


async def measure(server: Postgres, plan: argparse.Namespace) -> tuple[Figures, dict[str, str]]:
    store = PostgresStore(server)
    figures: Figures = {}
    for name in plan.parts.split(","):
        print(f"{name} …", file=sys.stderr, flush=True)
        figures |= await PARTS[name](store, plan)
    return figures, await store.describe()


def table(figures: Figures) -> Table:
    shown = Table(title="dead letters: median over the rounds (min – max)", show_lines=True)
    for heading in ("part", "beside", "ours", "ratio", "goal", ""):
        shown.add_column(heading)
    for name, figure in figures.items():
        shown.add_row(name, *figure.cells())
    return shown


def document(figures: Figures, server: dict[str, str], plan: argparse.Namespace) -> dict[str, Any]:
    return {
        "environment": {"python": platform.python_version(), "cpus": os.cpu_count(), "server": server},
        "plan": {name: value for name, value in vars(plan).items() if name not in ("json", "folder")},
        "parts": {name: figure.document() for name, figure in figures.items()},
    }


def main() -> int:
    """0 when everything ran and every count was right, whatever the goals say."""
    plan = options()
    settings = {
        "fsync": "on",
        "synchronous_commit": "on",
        "shared_buffers": plan.buffers,
        "max_wal_size": "8GB",
    }
    with Postgres(plan.folder, settings) as server:
        figures, described = uvloop.run(measure(server, plan))
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table(figures))
    if plan.json:
        plan.json.write_bytes(orjson.dumps(document(figures, described, plan), option=orjson.OPT_INDENT_2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
