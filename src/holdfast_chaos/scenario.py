"""A scenario of the ingest: one store, one WAL, one warehouse, and as many drivers as it takes.

Each driver may be killed. The caller publishes, and so knows what must be there in the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import holdfast
from holdfast.failpoints import VARIABLE
from holdfast.pipeline.connection import Connection
from holdfast_chaos import without_spark as plain_ingest
from holdfast_chaos.checks.pipeline import IngestState, Published
from holdfast_chaos.ingest_state import read_state
from holdfast_chaos.rig import FORKS
from holdfast_chaos.without_spark import CHANNEL

POINTS = [
    "source.mid_read",
    "wal.after_stage",
    "wal.before_plan",
    "wal.before_pending",
    "wal.after_pending",
    "wal.mid_cursors",
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
DELTA_POINTS = [
    "delta.after_stage",
    "compact.before_commit",
    "compact.after_commit",
    "compact.before_index",
    "compact.mid_clean",
]
"""What it passes besides where the warehouse is Delta."""
SPARK_POINTS = ["driver.after_offsets", "wal.after_pending", "driver.after_batch", "loader.after_commit"]
"""Where a driver on Spark dies."""
HELPER_POINTS = ["source.before_plan", "source.mid_read", "wal.after_stage"]
"""Where a process that Spark started dies: the one that plans, and the ones that read and stage."""
HELPER_LOST = b"java.io.EOFException"
"""What Spark says when a Python process of its own is gone."""
LEASE, LOCK = 121, timedelta(seconds=20)
PATIENCE = 120.0


class IngestScenario:
    """Publishes and drives, one driver after the other."""

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
        """Run a driver to its end or its death, at the latest at a moment after its start. Returns how it
        ended. Its clock is past the leases of those before it."""
        process = FORKS.Process(
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
        if hangs and moment is None:
            raise TimeoutError(f"a driver came to no end within {PATIENCE:g} s")
        return process.exitcode

    def drive_spark(
        self,
        kill: str | None = None,
        *,
        master: str = "local[2]",
        beside: Callable[[subprocess.Popen[bytes]], None] = lambda driver: None,
    ) -> int:
        """The same with a real driver on Spark. One that fails since a helper was killed counts as killed.
        `beside` is called while it runs."""
        spec = {"url": self.url, "folder": str(self.folder), "kind": self.kind, "ahead": self._next()}
        with self.spark_log.open("wb") as log:
            done = subprocess.Popen(
                [sys.executable, "-m", "holdfast_chaos.spark_driver", json.dumps(spec | {"master": master})],
                env=os.environ | {VARIABLE: f"{kill}=kill" if kill else ""},
                stdout=log,
                stderr=log,
            )
            beside(done)
            done.wait()
        with Connection([self.url]) as connection:  # a dead driver's lock ends by itself
            connection.run(connection.backends[0].advance(LOCK))
        lost = kill in HELPER_POINTS and HELPER_LOST in self.spark_log.read_bytes()
        return -signal.SIGKILL if lost else done.returncode

    @property
    def spark_log(self) -> Path:
        """What the last driver on Spark wrote."""
        return self.folder / "spark.log"

    def _next(self) -> int:
        self._ahead += LEASE
        return self._ahead

    def state(self) -> IngestState:
        """What is there now."""
        return read_state(self.url, CHANNEL, self.folder, self.kind)


def _data(number: int) -> Any:
    return b"\xff%d" % number if number % 7 == 0 else {"total": "x" if number % 5 == 0 else number}
