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
from .contestants import BACKENDS
from .measures import MEASURES, Plan
from .runner import run
from .stores import STORES

CHECK = Plan(events=500, singles=100, rate=100, seconds=2.0, rounds=1)


def arguments() -> argparse.ArgumentParser:
    default = Plan()
    parser = argparse.ArgumentParser(description="Holdfast beside its peers and a hand-written limit.")
    parser.add_argument("--backend", choices=sorted(BACKENDS), default="postgres")
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
    plan, known = plan_from(options), BACKENDS[options.backend]
    contestants = {name: known[name] for name in chosen(options.only, known)}
    with STORES[options.backend]() as store:
        results = uvloop.run(run(store, contestants, plan, tell))
        server = store.describe()
    report.show(results)
    if options.json:
        document = report.as_json(results, plan, server)
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    return 1 if results.failures else 0


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
