"""What typed handlers cost: `python -m bench.typed --store redis --rounds 5`.

A backlog of orders of about 400 bytes, drained by one process, in turns: with a handler that takes the event,
one that reads the event's JSON, and one that takes a pydantic model. The CPU time of that process for each
job decides: it is what limits it, and it depends little on what else the machine does.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from statistics import median

import psutil
import uvloop

from .crew import crew
from .measures import Figures, Plan, Stage, finalized, verify_handled
from .payload import stamped
from .runner import perform, turns
from .stores import STORES
from .usage import cpu_of_tree

CONTESTANTS = {name.lower(): f"bench.contestants.typed:{name}" for name in ("Event", "Json", "Typed")}
BULK = 5_000
GOAL = 0.8
"""Of the speed of a handler that reads the event's JSON."""


async def drain(stage: Stage, plan: Plan) -> Figures:
    """From the first event that is handled, which is held until the worker runs, to the last finalize."""
    for start in range(0, plan.events, BULK):
        await stage.contestant.publish_bulk([stamped() for _ in range(min(BULK, plan.events - start))])
    await stage.settle()
    async with crew(stage.target, stage.url, 1, held=True) as workers:
        worker = psutil.Process(workers.workers[0].process.pid)
        await workers.begin()
        await workers.until_handled(1, pause=0.001)
        before, began = cpu_of_tree(worker), time.perf_counter()
        workers.release()
        await workers.until_handled(plan.events, pause=0.003)
        await workers.until(lambda: finalized(stage, plan.events), pause=0.05)
        used, taken = cpu_of_tree(worker) - before, time.perf_counter() - began
        verify_handled(workers, plan.events)
    return {"cpu": 1e6 * used / plan.events, "rate": plan.events / taken}


async def measure(name: str, plan: Plan) -> dict[str, list[Figures]]:
    """The figures of each contestant, one for each round."""
    found: dict[str, list[Figures]] = defaultdict(list)
    with STORES[name]() as store:
        for turn in turns(CONTESTANTS, ["drain"], plan.rounds):
            _, figures = await perform(store, turn, drain, plan)
            found[turn.name].append(figures)
            print(f"{turn.name:6}{figures['cpu']:>8.1f} µs  {figures['rate']:>8,.0f}/s", file=sys.stderr)
    return found


def main() -> int:
    """1 where the goal was missed."""
    parser = argparse.ArgumentParser(description="What typed handlers cost.")
    parser.add_argument("--store", choices=STORES, default="redis")
    parser.add_argument("--events", type=int, default=Plan().events)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="small and quick: does it run?")
    options = parser.parse_args()
    plan = (
        Plan(events=5_000, rounds=1) if options.check else Plan(events=options.events, rounds=options.rounds)
    )
    found = uvloop.run(measure(options.store, plan))
    cpu = {name: median(each["cpu"] for each in figures) for name, figures in found.items()}
    for name, figures in found.items():
        rates = [each["rate"] for each in figures]
        print(f"{name:6}{cpu[name]:>8.1f} µs of CPU for each job  {median(rates):>8,.0f} jobs/s")
    speed = {name: cpu[name] / cpu["typed"] for name in ("json", "event")}
    print(f"typed / json {speed['json']:.2f} (goal {GOAL}), typed / event {speed['event']:.2f}")
    return int(speed["json"] < GOAL and not options.check)


if __name__ == "__main__":
    sys.exit(main())
