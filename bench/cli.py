"""The command line of the side-by-side benchmark."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import orjson
import uvloop

from . import report
from .contestants import CONTESTANTS
from .measures import MEASURES, Plan
from .runner import Results, run
from .stores import STORES

CHECK = Plan(events=500, singles=100, rate=100, seconds=2.0, rounds=1)


def arguments() -> argparse.ArgumentParser:
    default = Plan()
    parser = argparse.ArgumentParser(description="Holdfast beside its peers and a hand-written limit.")
    parser.add_argument("--store", choices=[*STORES, "all"], default="all")
    parser.add_argument("--events", type=int, default=default.events, help="in bulk and in a backlog")
    parser.add_argument("--singles", type=int, default=default.singles, help="published one by one")
    parser.add_argument("--rate", type=int, default=default.rate, help="events/s of the latency measure")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="of the latency measure")
    parser.add_argument("--rounds", type=int, default=default.rounds)
    parser.add_argument("--only", metavar="NAME,...", help="only these contestants")
    parser.add_argument("--measures", metavar="NAME,...", help=f"only these of {', '.join(MEASURES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--check", action="store_true", help="small and quick: does everything run?")
    return parser


def plan_from(options: argparse.Namespace) -> Plan:
    measures = chosen(options.measures, MEASURES)
    if options.check:
        return replace(CHECK, measures=measures)
    return Plan(options.events, options.singles, options.rate, options.seconds, options.rounds, measures)


def chosen(text: str | None, known: Iterable[str]) -> list[str]:
    """The names in a comma-separated option; all that are known where it was left out."""
    names = text.split(",") if text else list(known)
    if unknown := set(names).difference(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    return names


def main() -> int:
    """0 when everything ran and no event was lost, whatever the goals say; 1 otherwise."""
    options = arguments().parse_args()
    plan, stores = plan_from(options), list(STORES) if options.store == "all" else [options.store]
    known = dict.fromkeys(name for store in stores for name in CONTESTANTS[store])
    names, documents, failed = chosen(options.only, known), {}, False
    for store in stores:
        contestants = {name: target for name, target in CONTESTANTS[store].items() if name in names}
        results, server = uvloop.run(measure(store, contestants, plan))
        report.show(store, results)
        documents[store] = report.as_json(store, results, plan, server)
        failed = failed or bool(results.failures)
        if options.json:  # after each store: what is measured is kept, whatever comes next
            options.json.write_bytes(orjson.dumps(documents, option=orjson.OPT_INDENT_2))
    return 1 if failed else 0


async def measure(store: str, contestants: dict[str, str], plan: Plan) -> tuple[Results, dict[str, str]]:
    """All turns on one store, and what its server says of itself."""
    with STORES[store]() as opened:
        return await run(opened, contestants, plan, tell), await opened.describe()


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
