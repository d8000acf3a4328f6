"""How fresh the warehouse is with many small channels, and what that costs.

    python -m bench.freshness                        # 200 channels, 50 events/s, 3 minutes, DuckDB
    python -m bench.freshness --warehouse delta --store redis --seconds 1800
    python -m bench.freshness --check                # small and quick: does it run?

A driver (`holdfast ingest`) runs as a process of its own. Freshness is the time from the acknowledgement of
an event to the confirmation of the batch that has its row, which is a little after the row can be read. CPU
is that of the driver and of everything it started: Java, Spark's Python processes.
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
import time
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable

import holdfast
from bench.feed import server, tell
from holdfast.bus.sync import SyncBus
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalSettings

GOALS = {"p99_seconds": 15.0, "busy_percent": 25.0, "idle_percent": 2.0}
_TICKS = os.sysconf("SC_CLK_TCK")
_SETTLE = 60.0


def main() -> int:
    """0 when every event arrived once, whatever the goals say; 1 otherwise."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(dir=options.folder, prefix="holdfast-bench-") as folder,
        server(options.store) as url,
    ):
        figures = _run(url, Path(folder), options)
    print(json.dumps(figures, indent=2))
    return 0 if figures["events"] == figures["rows"] else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How fresh the warehouse is with many small channels.")
    parser.add_argument("--store", choices=["redis", "postgres"], default="postgres")
    parser.add_argument("--warehouse", choices=["duckdb", "delta"], default="duckdb")
    parser.add_argument("--channels", type=int, default=200)
    parser.add_argument("--rate", type=float, default=50.0, help="events per second, over all channels")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--idle", type=float, default=60.0, help="how long to measure an idle driver")
    parser.add_argument("--folder", type=Path, default=None, help="where to work")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        options.channels, options.seconds, options.idle = 10, 10.0, 5.0
    return options


def _run(url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    warehouse = {"duckdb": f"duckdb://{folder}/warehouse.duckdb", "delta": f"delta://{folder}/tables"}
    command = [sys.executable, "-m", "holdfast.cli", "ingest", "--channel", "bench.>", "--json"]
    command += ["--warehouse", warehouse[options.warehouse], "--wal", str(folder / "wal")]
    channels = [f"bench.c{number:03}" for number in range(options.channels)]
    wal = Wal(open_store(str(folder / "wal")), WalSettings(path=str(folder / "wal")))
    with holdfast.connect_sync(url) as bus, (folder / "ingest.log").open("w") as log:
        for channel in channels:
            bus.create_channel(channel)
        acked = _publish(bus, channels, 5.0, options.rate, "warm")
        driver = subprocess.Popen(
            command, env=os.environ | {"HOLDFAST_URL": url}, cwd=folder, stdout=log, stderr=log
        )
        try:
            _settle(wal, len(acked), driver)
            began, before = time.monotonic(), _cpu(driver.pid)
            acked |= _publish(bus, channels, options.seconds, options.rate, "e")
            busy = (_cpu(driver.pid) - before) / (time.monotonic() - began)
            _settle(wal, len(acked), driver)
            tell("idle")
            time.sleep(5.0)
            began, before = time.monotonic(), _cpu(driver.pid)
            time.sleep(options.idle)
            idle = (_cpu(driver.pid) - before) / (time.monotonic() - began)
        finally:
            driver.send_signal(signal.SIGTERM)
            driver.wait(120)
    rows = _rows(folder, options.warehouse)
    confirmed = {name: wal.confirmation(name) for name in wal.journal.names("confirmed")}
    ages = sorted(
        confirmed[batch].confirmed_at.timestamp() - acked[name]  # type: ignore[union-attr]
        for name, batch in rows
        if name.startswith("e-")
    )
    return {
        "store": options.store,
        "warehouse": options.warehouse,
        "channels": options.channels,
        "rate": options.rate,
        "seconds": options.seconds,
        "load_average": os.getloadavg()[0],
        "events": len(acked),
        "rows": len(rows),
        "batches": len(confirmed),
        "p50_seconds": round(ages[len(ages) // 2], 2),
        "p99_seconds": round(ages[len(ages) * 99 // 100], 2),
        "max_seconds": round(ages[-1], 2),
        "busy_percent": round(100 * busy, 1),
        "idle_percent": round(100 * idle, 1),
        "files_per_hour": _files(folder, options),
        "goals": GOALS,
    }


def _publish(bus: SyncBus, channels: list[str], seconds: float, rate: float, prefix: str) -> dict[str, float]:
    """By id: when each event was acknowledged."""
    acked: dict[str, float] = {}
    chance, began = random.Random(7), time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        while len(acked) < now * rate:
            name = f"{prefix}-{len(acked)}"
            bus.publish(chance.choice(channels), {"n": len(acked), "text": "x" * 100}, id=name)
            acked[name] = time.time()
        time.sleep(0.02)
    return acked


def _settle(wal: Wal, events: int, driver: subprocess.Popen[bytes]) -> None:
    """Until the warehouse has so many events."""
    until = time.monotonic() + _SETTLE + events / 100
    while time.monotonic() < until:
        if driver.poll() is not None:
            raise SystemExit(f"the driver ended with {driver.returncode}; see its log")
        found = [wal.confirmation(name) for name in wal.journal.names("confirmed")]
        if sum(each.rows for each in found if each is not None) >= events:
            return
        time.sleep(0.5)
    raise SystemExit("the events did not arrive in time")


def _rows(folder: Path, warehouse: str) -> list[tuple[str, str]]:
    """Ids and batches."""
    if warehouse == "duckdb":
        with duckdb.connect(str(folder / "warehouse.duckdb"), read_only=True) as connection:
            return connection.execute("SELECT id, batch FROM events").fetchall()
    found = DeltaTable(folder / "tables" / "events").to_pyarrow_table(columns=["id", "batch"])
    return list(zip(found["id"].to_pylist(), found["batch"].to_pylist(), strict=True))


def _files(folder: Path, options: argparse.Namespace) -> float | None:
    if options.warehouse == "duckdb":
        return None
    live = len(DeltaTable(folder / "tables" / "events").file_uris())
    return round(live * 3600 / options.seconds, 1)


def _cpu(root: int) -> float:
    """CPU seconds of a process and all that it started, those that have ended among them."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = sum(map(int, fields[11:15])) / _TICKS
    tree, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in tree} - tree
        tree, grown = tree | more, bool(more)
    return sum(used.get(pid, 0.0) for pid in tree)


if __name__ == "__main__":
    sys.exit(main())
