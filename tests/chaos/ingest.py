# ruff: noqa: E402
"""Chaos for the ingest: hundreds of SIGKILLs on three stores and two warehouses, judged from outside.

    python tests/chaos/ingest.py                      # what `make chaos-ingest` runs
    python tests/chaos/ingest.py --kills 12 --no-spark --stores postgres --seed 7
    python tests/chaos/ingest.py --minutes 6 --resume kills          # a part of it, and next time the next

A driver is killed at each failpoint in turn and at moments that the seed draws, most of the time one without
Spark (its steps are the job's own), now and then a real one; the stores side by side. Each round publishes,
kills, and looks whether I9, I10 and I11 hold; at the end a last driver drains what is left, and the account
must be exact. The control: with transaction ids from a counter the same check must find doubles.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "pipeline")]

import argparse
import json
import math
import multiprocessing
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from campaign import Campaign, control
from hosts import SERVERS

from holdfast_chaos.scenario import HELPER_POINTS, SPARK_POINTS
from report import Control, Report, Site, show

WAREHOUSES = ("duckdb", "delta")


def main() -> int:
    """0 when everything held, every failpoint was hit, and the control found its doubles."""
    options = _options()
    report, began = Report(options.seed), time.monotonic()
    with ProcessPoolExecutor(len(options.stores), multiprocessing.get_context("spawn")) as pool:
        stores = list(enumerate(options.stores))
        done = {store: pool.submit(_run_store, store, number, options) for number, store in stores}
    for store, each in done.items():
        if error := each.exception():
            report.broken_off[store] = repr(error)
            continue
        sites, found = each.result()
        report.sites += sites
        report.controls.append(found)
    report.seconds = time.monotonic() - began
    sys.stdout.write(f"{show(report)}\n")
    if options.json:
        options.json.write_text(json.dumps(report.to_json(), indent=2))
    return 0 if report.holds else 1


def _run_store(store: str, number: int, options: argparse.Namespace) -> tuple[list[Site], Control]:
    """One store: a campaign against each warehouse, and the control."""
    sites = [_begun(options.resume, store, kind) for kind in options.warehouses]
    until = time.monotonic() + 60 * options.minutes
    with SERVERS[store]() as url, tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as folder:

        def part(name: str) -> tuple[str, Path]:
            where = Path(folder) / name
            where.mkdir()
            return url(name), where

        for place, site in enumerate(sites):
            chance = random.Random(f"{options.seed} {store} {site.warehouse} {site.killed or ''}")
            campaign = Campaign(site, *part(site.warehouse), chance, partial(_save, options.resume, site))
            spark = _share(number * len(sites) + place) if options.spark else []
            campaign.run(options.kills, spark, until)
            sys.stderr.write(f"{site.line}\n")
        counted = control(*part("counted"), counted=True)
        return sites, Control(store, counted, control(*part("derived"), counted=False))


def _begun(folder: Path | None, store: str, warehouse: str) -> Site:
    """What an earlier run has done of it."""
    kept = None if folder is None else folder / f"{store}-{warehouse}.json"
    if kept is None or not kept.exists():
        return Site(store, warehouse)
    return Site.from_json(json.loads(kept.read_text()))


def _save(folder: Path | None, site: Site) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f"{site.store}-{site.warehouse}.new"
        fresh.write_text(json.dumps(site.to_json(), indent=2))
        fresh.replace(folder / f"{site.store}-{site.warehouse}.json")


def _share(turn: int) -> list[str]:
    """Where a driver on Spark dies, and where a process that it started, in turn."""
    return [SPARK_POINTS[turn % len(SPARK_POINTS)], HELPER_POINTS[turn % len(HELPER_POINTS)]]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill the ingest, and judge what is left.")
    parser.add_argument("--seed", type=int, default=20260301)
    parser.add_argument("--kills", type=int, default=33, help="without Spark, for each store and warehouse")
    parser.add_argument("--no-spark", dest="spark", action="store_false", help="no real drivers")
    parser.add_argument("--stores", nargs="+", choices=list(SERVERS), default=list(SERVERS))
    parser.add_argument("--warehouses", nargs="+", choices=WAREHOUSES, default=list(WAREHOUSES))
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no more kills after so long")
    parser.add_argument("--resume", type=Path, metavar="FOLDER", help="go on from there, and keep it there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the report here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
