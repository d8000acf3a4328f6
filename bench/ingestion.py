"""The ingest beside two loops that anybody might write: a channel into a table, in events per second.

    python bench/ingest.py                                # 1,000,000 events of each store into each warehouse
    python bench/ingest.py --check                        # small and quick: does everything run?
    python bench/ingest.py --deep 50000000 --store none   # the cost per event in a full table

`holdfast` is the whole way: source, validation, WAL, cursor, loader, warehouse, confirmation. `bulk` reads
the same log and inserts Arrow batches into DuckDB: no WAL, no ledger, no look at what is there. `rows`
inserts one row at a time with `ON CONFLICT DO NOTHING` and a unique index. Nobody's start-up counts: Spark
has run the same job on another channel before, connections are open, and the clock of `holdfast` runs from
the confirmation of its first batch to that of its last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench import depth, loops
from bench.feed import BATCH, CHANNEL, WARM_UP, forget_cursor, publish, server, tell
from holdfast.pipeline.ingest.driver import Ingest
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.session import session
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.warehouse import Tables, open_warehouse

ROWS = 20_000
"""Events for the loop that inserts row by row: its rate does not depend on how many there are."""
GOALS = {"bulk": 0.5, "rows": 20.0}
DEEP_GOAL = 2.0
Figures = dict[str, list[float]]


def main() -> int:
    """0 when every event arrived once, whatever the goals say; 1 otherwise."""
    options = _options()
    stores = {"all": ["redis", "postgres"], "none": []}.get(options.store, [options.store])
    results: dict[str, Any] = {"cores": os.cpu_count(), "events": options.events}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="holdfast-bench-") as folder:
        for store in stores:
            results[store] = _side_by_side(store, Path(folder), options)
        if options.deep:
            results["deep"] = _deep(Path(folder), options.deep)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The ingest beside two loops that anybody might write.")
    parser.add_argument("--store", choices=["redis", "postgres", "all", "none"], default="all")
    parser.add_argument("--warehouses", default="duckdb,delta", help="of holdfast")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[*]", help="Spark's")
    parser.add_argument(
        "--deep", type=int, default=0, metavar="ROWS", help="also: a load into a table of so many"
    )
    parser.add_argument("--folder", type=Path, default=None, help="for warehouses and WAL; a real disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--check", action="store_true", help="small and quick: does everything run?")
    found = parser.parse_args()
    if found.check:
        found.events, found.rounds, found.deep = 20_000, 1, 2_000_000
    return found


def _side_by_side(store: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with server(store) as url, session(options.master, name="bench") as spark:
        publish(url, WARM_UP, min(options.events, 100_000))
        publish(url, CHANNEL, options.events)
        contestants: dict[str, Callable[[Path], float]] = {
            f"holdfast {kind}": partial(_holdfast, spark, url, kind, options.events)
            for kind in options.warehouses.split(",")
        }
        contestants |= {
            "bulk": partial(loops.bulk, url, options.events),
            "rows": partial(loops.rows, url, min(ROWS, options.events)),
        }
        figures: Figures = {name: [] for name in contestants}
        for turn in range(options.rounds):
            for name in _rotated(list(contestants), turn):
                where = folder / f"{store}-{name.replace(' ', '-')}-{turn}"
                where.mkdir()
                figures[name].append(contestants[name](where))
                tell(f"{store}: {name}: {figures[name][-1]:,.0f} events/s")
                shutil.rmtree(where)
    return _judge(store, figures)


def _holdfast(spark: Any, url: str, kind: str, events: int, where: Path) -> float:
    """Events per second, once it is under way."""
    target = {"duckdb": f"duckdb://{where}/warehouse.duckdb", "delta": f"delta://{where}/tables"}[kind]

    def job(channel: str) -> Ingest:
        forget_cursor(url, channel)
        wal = WalSettings(str(where / channel / "wal"))
        plan = IngestPlan((channel,), target, wal, max_rows=BATCH)
        return Ingest(spark, [url], plan, where / channel / "checkpoints")

    job(WARM_UP).run_once()
    measured = job(CHANNEL)
    began = time.perf_counter()
    summary = measured.run_once()
    took = time.perf_counter() - began
    warehouse = open_warehouse(target, Tables())
    ids = [each for batch in warehouse.events(CHANNEL) for each in batch["id"].to_pylist()]
    warehouse.close()
    if (len(ids), len(set(ids)), summary.failed) != (events, events, 0):
        raise SystemExit(f"{kind}: {len(ids)} rows of {len(set(ids))} events instead of {events}")
    tell(f"{kind}: {events / took:,.0f} events/s with the start of the query")
    return _steady(measured.wal, took)


def _steady(wal: Wal, took: float) -> float:
    """Events per second between the first confirmation and the last; of a single batch, over all it took."""
    found = [each for name in wal.records.names("confirmed") if (each := wal.confirmation(name))]
    found.sort(key=lambda each: each.confirmed_at)
    if len(found) == 1:
        return found[0].rows / took
    between = found[-1].confirmed_at - found[0].confirmed_at
    return sum(each.rows for each in found[1:]) / between.total_seconds()


def _judge(store: str, figures: Figures) -> dict[str, Any]:
    medians = {name: median(values) for name, values in figures.items()}
    ratios: dict[str, dict[str, float]] = {}
    for name, value in medians.items():
        peers = GOALS if name.startswith("holdfast") else {}
        ratios[name] = {peer: value / medians[peer] for peer in peers}
        said = [
            f"{ratios[name][peer]:.2f}× {peer} ({_verdict('≥', goal, ratios[name][peer])})"
            for peer, goal in peers.items()
        ]
        print(f"{store:9} {name:16} {value:12,.0f} events/s   {'; '.join(said)}", flush=True)
    return {
        "events_per_second": figures,
        "medians": medians,
        "ratios": {k: v for k, v in ratios.items() if v},
    }


def _deep(folder: Path, rows: int) -> dict[str, Any]:
    costs = depth.costs(folder, rows)
    (small, low), (large, high) = costs.items()
    ratio = high / low
    print(
        f"load of {BATCH:,} events: {low:.2f} µs/event with {small:,} rows, {high:.2f} with {large:,}: "
        f"{ratio:.2f}× ({_verdict('≤', DEEP_GOAL, ratio)})"
    )
    return {"microseconds_per_event": costs, "ratio": ratio}


def _rotated(names: list[str], turn: int) -> list[str]:
    place = turn % len(names)
    return names[place:] + names[:place]


def _verdict(relation: str, goal: float, found: float) -> str:
    met = found >= goal if relation == "≥" else found <= goal
    return f"goal {relation} {goal:g}×: {'ok' if met else 'miss'}"
