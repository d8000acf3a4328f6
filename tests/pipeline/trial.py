"""A trial: one store, one WAL, one warehouse, and as many drivers as it takes; each may be killed.

Whoever holds the trial publishes, and so knows what must be there in the end. The evidence is read from the
files with tools that know nothing of ours, but for the cursor, which the store has.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import plain_ingest
import pyarrow.parquet as pq
from deltalake import DeltaTable
from plain_ingest import CHANNEL
from verdict import Evidence, Published, Stored

import holdfast
from holdfast.failpoints import VARIABLE
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER

# Every process is a fork of one that has imported what takes long and done nothing.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "pandas",
        "holdfast.pipeline.reader",
        "holdfast.pipeline.ingest.loading",
        "holdfast.pipeline.ingest.plan",
        "holdfast.pipeline.warehouse.delta",
        "holdfast.backends.postgres.backend",
        "holdfast.backends.redis.backend",
        "holdfast.backends.nats.backend",
    ]
)
POINTS = [
    "source.mid_read",
    "wal.after_stage",
    "wal.before_pending",
    "wal.after_pending",
    "wal.after_cursor",
    "loader.after_lease",
    "loader.after_failed",
    "loader.before_commit",
    "loader.after_commit",
    "loader.after_confirm",
    "loader.after_mirror",
    "wal.mid_clean",
]
"""What a driver without Spark passes, in the order in which it does."""
SPARK_POINTS = ["driver.after_offsets", "wal.after_pending", "driver.after_batch", "loader.after_commit"]
"""Where a driver on Spark dies."""
HELPER_POINTS = ["source.before_plan", "source.mid_read", "wal.after_stage"]
"""Where a process that Spark started dies: the one that plans, and the ones that read and stage."""
HELPER_LOST = b"java.io.EOFException"
"""What Spark says when a Python process of its own is gone."""
LEASE, LOCK = 121, timedelta(seconds=20)
PATIENCE = 120.0


class Trial:
    """One of them."""

    def __init__(self, url: str, folder: Path, kind: str = "duckdb") -> None:
        self.url, self.folder, self.kind = url, folder, kind
        self.history: dict[str, Published] = {}
        self._ahead = 0

    def publish(self, count: int) -> None:
        """Events, of which every fifth has a total that no column takes, and every seventh is no JSON."""
        first = len(self.history) + 1
        numbers = range(first, first + count)
        events = [holdfast.Event(_data(number), f"o-{number}") for number in numbers]
        with holdfast.connect_sync(self.url) as bus:
            receipts = bus.publish_many(CHANNEL, events)
        for number, receipt in zip(numbers, receipts, strict=True):
            self.history[receipt.position] = Published(receipt.id, bool(number % 5 and number % 7))

    def drive(self, *, moment: float | None = None, **spec: Any) -> int | None:
        """Run a driver to its end or its death, at the latest at a moment after its start; answers how it
        ended. Its clock is past the leases of those before it."""
        process = PROCESSES.Process(
            target=plain_ingest.drive,
            args=(self.url, self.folder),
            kwargs={"ahead": self._next(), "kind": self.kind, **spec},
        )
        process.start()
        process.join(PATIENCE if moment is None else moment)
        hangs = process.is_alive()
        if hangs:
            process.kill()
        process.join()
        assert moment is not None or not hangs, f"a driver came to no end within {PATIENCE:g} s"
        return process.exitcode

    def drive_spark(self, kill: str | None = None) -> int:
        """The same with a real driver on Spark. One that fails since a helper was killed counts as killed."""
        spec = {"url": self.url, "folder": str(self.folder), "kind": self.kind, "ahead": self._next()}
        with (self.folder / "spark.log").open("wb") as log:
            done = subprocess.run(
                [sys.executable, Path(__file__).with_name("spark_ingest.py"), json.dumps(spec)],
                env=os.environ | {VARIABLE: f"{kill}=kill" if kill else ""},
                stdout=log,
                stderr=log,
            )
        with Connection([self.url]) as connection:  # a dead driver's lock ends by itself
            connection.run(connection.backends[0].advance(LOCK))
        lost = kill in HELPER_POINTS and HELPER_LOST in (self.folder / "spark.log").read_bytes()
        return -signal.SIGKILL if lost else done.returncode

    def _next(self) -> int:
        self._ahead += LEASE
        return self._ahead

    def evidence(self) -> Evidence:
        """What is there now, whether or not anybody has recovered yet."""
        wal = self.folder / "wal"
        batches = {record["name"]: record for record in _records(wal / "pending")}
        over = {each["name"] for state in ("confirmed", "failed") for each in _records(wal / state)}
        warehouse = _duckdb if self.kind == "duckdb" else _delta
        rows, ledger, mirrored = warehouse(self.folder)
        return Evidence(
            self._cursor(),
            {position for record in batches.values() for position in _positions(wal, record)},
            sorted(batches.keys() - over),
            Counter(path.stem.rpartition("@")[2] for path in (wal / "failed").glob("*/*@*.json")),
            rows,
            ledger,
            mirrored,
        )

    def _cursor(self) -> str:
        with Connection([self.url]) as connection:
            found = connection.run(connection.backends[0].cursors(CHANNEL))
        return next((cursor.position or "" for cursor in found if cursor.name == CONSUMER), "")


def _data(number: int) -> Any:
    return b"\xff%d" % number if number % 7 == 0 else {"total": "x" if number % 5 == 0 else number}


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("*.json"):
        yield json.loads(path.read_bytes())["record"] | {"name": path.stem}


def _positions(wal: Path, batch: dict[str, Any]) -> Iterator[str]:
    for segment in batch["segments"]:
        data = (wal / segment["name"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == segment["sha256"], f"{segment['name']} is damaged"
        yield from pq.read_table(io.BytesIO(data), columns=["position"])["position"].to_pylist()


_Warehouse = tuple[list[Stored], dict[str, int], Counter[str]]


def _duckdb(folder: Path) -> _Warehouse:
    file = folder / "warehouse.duckdb"
    if not file.exists():
        return [], {}, Counter()
    with duckdb.connect(str(file)) as connection:  # for writing: it may have a log to replay
        there = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}

        def ask(table: str, columns: str) -> list[tuple[Any, ...]]:
            return connection.execute(f"SELECT {columns} FROM {table}").fetchall() if table in there else []

        rows = [Stored(*row) for row in ask("events", 'id, "position", batch')]
        ledger = {key: inserted for key, inserted in ask("holdfast_ledger", "key, inserted") if inserted}
        return rows, ledger, Counter(row[0] for row in ask("failed_events", "event_id"))


def _delta(folder: Path) -> _Warehouse:
    tables = folder / "tables"
    rows = [Stored(**row) for row in _table(tables / "events", list(Stored._fields))]
    mirrored = Counter(row["event_id"] for row in _table(tables / "failed_events", ["event_id"]))
    return rows, dict(_delta_ledger(tables)), mirrored


def _table(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    if not (path / "_delta_log").exists():
        return []
    found: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table(columns=columns).to_pylist()
    return found


def _delta_ledger(tables: Path) -> Iterator[tuple[str, int]]:
    """The entries that commits of the table name, with the rows that each of them counts."""
    for commit in sorted((tables / "events" / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "txn" in action:
                key, number = action["txn"]["appId"], action["txn"]["version"]
                name = f"{hashlib.sha256(key.encode()).hexdigest()}/{number:06}.json"
                inserted = json.loads((tables / "_holdfast" / name).read_bytes())["inserted"]
                if inserted:
                    yield key, inserted
