"""What typed handlers cost: `python -m bench.typed --store redis --rounds 5`.

A backlog of orders of about 400 bytes, drained by one process, in turns: with a handler that takes the event,
one that reads the event's JSON, and one that takes a pydantic model.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from statistics import median

import uvloop

from .cli import CHECK, measure
from .measures import Plan
from .stores import STORES

MEASURE = "consume_1"
CONTESTANTS = {name.lower(): f"bench.contestants.typed:{name}" for name in ("Event", "Json", "Typed")}
GOAL = 0.8
"""Of the speed of a handler that reads the event's JSON."""


def main() -> int:
    """1 where an event was lost, or the goal was missed."""
    parser = argparse.ArgumentParser(description="What typed handlers cost.")
    parser.add_argument("--store", choices=STORES, default="redis")
    parser.add_argument("--events", type=int, default=Plan().events)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="small and quick: does it run?")
    options = parser.parse_args()
    plan = CHECK if options.check else Plan(events=options.events, rounds=options.rounds)
    results, _ = uvloop.run(measure(options.store, CONTESTANTS, replace(plan, measures=[MEASURE])))
    figures = results.figures[MEASURE]
    for name, found in figures.items():
        print(f"{name:8}{median(found):>10,.0f} events/s  ({min(found):,.0f} – {max(found):,.0f})")
    ratios = {name: median(figures["typed"]) / median(figures[name]) for name in ("json", "event")}
    print(f"typed / json {ratios['json']:.2f} (goal {GOAL}), typed / event {ratios['event']:.2f}")
    for failure in results.failures:
        print(f"failed: {failure}", file=sys.stderr)
    return int(bool(results.failures) or (ratios["json"] < GOAL and not options.check))


if __name__ == "__main__":
    sys.exit(main())
