"""How fresh the warehouse is with many small channels, and what that costs.

    python -m bench.freshness                        # 200 channels, 50 events/s, 3 minutes, DuckDB
    python -m bench.freshness --warehouse delta --archive --seconds 1800
    python -m bench.freshness --check                # small and quick: does it run?

The driver (`holdfast ingest`, with `--archive` also `holdfast archive`) is a process of its own. Freshness
is the time from the acknowledgement of an event to the confirmation of the batch that has its row, which is a
little after the row can be read. CPU is that of a driver and of everything it started: Java, Spark's Python
processes. Every minute, and at the end, the figures so far are printed as one line of JSON: one can interrupt
it at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

import holdfast
from bench.feed import server, tell
from bench.meter import Meter
from holdfast.bus.sync import SyncBus
from holdfast.pipeline.archive.manifests import read_catalog
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalSettings

GOALS = {
    "p99_seconds": 15.0,
    "busy_percent": 25.0,
    "idle_percent": 2.0,
    "files_per_hour": 20.0,
    "objects_per_channel_and_hour": 4.0,
}
_SETTLE = 180.0
_WARM_UP = "warm"


def main() -> int:
    """0 when every event arrived once, whatever the goals say; 1 otherwise."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(dir=options.folder, prefix="holdfast-bench-") as folder,
        server(options.store) as url,
    ):
        figures = _run(url, Path(folder), options)
    print(json.dumps(figures | {"goals": GOALS}), flush=True)
    return 0 if figures["events"] == figures["rows"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How fresh the warehouse is with many small channels.")
    parser.add_argument("--store", choices=["redis", "postgres"], default="postgres")
    parser.add_argument("--warehouse", choices=["duckdb", "delta"], default="duckdb")
    parser.add_argument("--archive", action="store_true", help="an archiver with its defaults beside it")
    parser.add_argument("--channels", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0, help="events per second, over all channels")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--idle", type=float, default=60.0, help="how long to measure an idle driver")
    parser.add_argument("--warm-up", type=float, default=30.0, help="how long to publish before it counts")
    parser.add_argument("--report", type=float, default=60.0, help="how often to print the figures so far")
    parser.add_argument("--folder", type=Path, default=None, help="where to work")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        options.channels, options.seconds, options.idle, options.warm_up = 10, 10.0, 5.0, 2.0
    return options


@dataclass
class Ages:
    """How old events were when their rows were there, from the WAL's confirmations."""

    wal: Wal
    acked: dict[str, dict[str, float]] = field(default_factory=dict)
    """By channel and position: those that have no row yet."""
    seconds: list[float] = field(default_factory=list)
    rows: int = 0
    batches: set[str] = field(default_factory=set)

    def look(self) -> None:
        """Take in what was confirmed since the last look."""
        for name in set(self.wal.records.names("confirmed")) - self.batches:
            found, batch = self.wal.confirmation(name), self.wal.batch(name)
            if found is None:
                continue
            self.batches.add(name)
            self.rows += found.rows
            for part in batch.parts:
                waiting = self.acked.get(part.channel, {})
                for position in [each for each in waiting if part.first <= each <= part.last]:
                    self.seconds.append(found.confirmed_at.timestamp() - waiting.pop(position))

    def figures(self) -> dict[str, Any]:
        """So far. The oldest event without a row counts: a driver that stands still is not fresh."""
        self.look()
        ages = sorted(self.seconds)
        waiting = [min(each.values()) for each in self.acked.values() if each]
        return {
            "confirmed": self.rows,
            "batches": len(self.batches),
            "p50_seconds": round(ages[len(ages) // 2], 2) if ages else None,
            "p99_seconds": round(ages[len(ages) * 99 // 100], 2) if ages else None,
            "max_seconds": round(ages[-1], 2) if ages else None,
            "oldest_waiting_seconds": round(time.time() - min(waiting), 2) if waiting else 0.0,
        }


class Costs:
    """What the drivers have used since a moment, in percent of a core."""

    def __init__(self, meters: dict[str, Meter]) -> None:
        self._meters, self._began = meters, time.monotonic()
        self._before = {name: meter.seconds() for name, meter in meters.items()}

    def figures(self, label: str) -> dict[str, Any]:
        """By driver: in all, and by what used it."""
        found: dict[str, Any] = {}
        elapsed = time.monotonic() - self._began
        for name, meter in self._meters.items():
            now, before = meter.seconds(), self._before[name]
            spent = {kind: 100 * (now[kind] - before[kind]) / elapsed for kind in now}
            prefix = "" if name == "ingest" else f"{name}_"
            found[f"{prefix}{label}_percent"] = round(sum(spent.values()), 1)
            found[f"{prefix}{label}_by_process"] = {kind: round(each, 1) for kind, each in spent.items()}
            found[f"{prefix}processes_ended"] = meter.ended
        return found


def _run(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    channels = [f"bench.c{number:03}" for number in range(options.channels)]
    ages = Ages(Wal(open_store(str(folder / "wal")), WalSettings(path=str(folder / "wal"))))
    with holdfast.connect_sync(url) as bus, ExitStack() as stack:
        for channel in channels:
            bus.create_channel(channel)
        events = _publish(bus, channels, ages, 1.0, options.rate, _WARM_UP)
        drivers = {
            name: stack.enter_context(_driver(name, command, url, folder))
            for name, command in _commands(folder, options).items()
        }
        meters = {name: stack.enter_context(Meter(driver.pid)) for name, driver in drivers.items()}
        _settle(ages, events, drivers)
        events += _publish(bus, channels, ages, options.warm_up, options.rate, "warmer")
        _settle(ages, events, drivers)
        ages.seconds.clear()
        costs, began = Costs(meters), time.monotonic()

        def so_far() -> dict[str, Any]:
            return {
                "store": options.store,
                "warehouse": options.warehouse,
                "channels": options.channels,
                "rate": options.rate,
                "seconds": round(time.monotonic() - began, 1),
                "load_average": os.getloadavg()[0],
                **ages.figures(),
                **costs.figures("busy"),
                **_files(folder, options, time.monotonic() - began),
            }

        with _every(options.report, lambda: print(json.dumps(so_far()), flush=True)):
            events += _publish(bus, channels, ages, options.seconds, options.rate, "e")
        busy = costs.figures("busy")
        _settle(ages, events, drivers)
        figures = so_far() | busy | {"seconds": options.seconds}
        print(json.dumps(figures), flush=True)
        tell("idle")
        time.sleep(10.0)
        costs = Costs(meters)
        time.sleep(options.idle)  # with compaction, which runs once a minute
        figures |= costs.figures("idle") | _files(folder, options, options.seconds)
    return figures | {"events": events, "rows": _rows(folder, options.warehouse)}


def _commands(folder: Path, options: argparse.Namespace) -> dict[str, list[str]]:
    warehouse = {"duckdb": f"duckdb://{folder}/warehouse.duckdb", "delta": f"delta://{folder}/tables"}
    ingest = ["ingest", "--channel", "bench.>", "--warehouse", warehouse[options.warehouse]]
    commands = {"ingest": [*ingest, "--wal", str(folder / "wal")]}
    if options.archive:
        commands["archive"] = ["archive", "--stream", "bench.>", "--destination", str(folder / "archive")]
    return commands


@contextmanager
def _driver(name: str, command: list[str], url: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *command, "--json"],
            env=os.environ | {"HOLDFAST_URL": url},
            cwd=folder,
            stdout=log,
            stderr=log,
        )
        try:
            yield driver
        finally:
            driver.send_signal(signal.SIGTERM)
            driver.wait(300)


@contextmanager
def _every(seconds: float, act: Any) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _publish(bus: SyncBus, channels: list[str], ages: Ages, seconds: float, rate: float, prefix: str) -> int:
    """Events at an even rate, over channels by chance; returns how many."""
    chance, began, count = random.Random(prefix), time.monotonic(), 0
    while (now := time.monotonic() - began) < seconds:
        while count < now * rate:
            channel = chance.choice(channels)
            receipt = bus.publish(channel, {"n": count, "text": "x" * 100}, id=f"{prefix}-{count}")
            ages.acked.setdefault(channel, {})[str(receipt.position)] = time.time()
            count += 1
        time.sleep(0.02)
    return count


def _settle(ages: Ages, events: int, drivers: dict[str, subprocess.Popen[bytes]]) -> None:
    """Until the warehouse has so many events."""
    until = time.monotonic() + _SETTLE + events / 100
    while time.monotonic() < until:
        for name, driver in drivers.items():
            if driver.poll() is not None:
                raise SystemExit(f"{name} ended with {driver.returncode}; see its log")
        ages.look()
        if ages.rows >= events:
            return
        time.sleep(0.5)
    raise SystemExit("the events did not arrive in time")


def _rows(folder: Path, warehouse: str) -> int:
    """Distinct ids; minus one where there are others twice."""
    if warehouse == "duckdb":
        with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as connection:
            found = [row[0] for row in connection.execute("SELECT id FROM events").fetchall()]
    else:
        found = DeltaTable(folder / "tables" / "events").to_pyarrow_table(columns=["id"])["id"].to_pylist()
    return len(found) if len(found) == len(set(found)) else -1


def _files(folder: Path, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Live files of each Delta table, and objects of the archive, as they are and by the hour."""
    found: dict[str, Any] = {}
    hours = seconds / 3600
    if options.warehouse == "delta":
        tables = {path.parent.name: path.parent for path in (folder / "tables").glob("*/_delta_log")}
        live = {name: len(DeltaTable(path).file_uris()) for name, path in sorted(tables.items())}
        found["live_files"] = live
        found["files_per_hour"] = {name: round(count / hours, 1) for name, count in live.items()}
    if options.archive:
        objects = Counter(each.channel for each in read_catalog(open_store(str(folder / "archive"))).objects)
        found["objects"] = objects.total()
        found["objects_per_channel"] = max(objects.values(), default=0)
        found["objects_per_channel_and_hour"] = round(objects.total() / options.channels / hours, 2)
    return found


if __name__ == "__main__":
    sys.exit(main())
