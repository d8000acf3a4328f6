"""An ingest without Spark, to be run in a process of its own.

It reads a portion of the log as a task would, stages, commits, loads, mirrors and cleans up: the very steps
of the job, in one process, so that it can be killed at each of them at little cost.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql.datasource import InputPartition

from holdfast import failpoints
from holdfast.pipeline import reader
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import CONSUMER, Committer, StoreCursors
from holdfast.pipeline.ingest.freshness import Freshness
from holdfast.pipeline.ingest.loader_thread import LoaderThread
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.repair import Repairs
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.options import Options
from holdfast.pipeline.portions import Slice
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.warehouse import Column, Table, Tables, delta_upkeep, open_warehouse, spread
from holdfast.pipeline.warehouse.address import upkeep_of

CHANNEL = "orders"
PORTION = 12
LONG = 60.0
"""A driver that takes so many seconds says where it is: usually it takes less than one."""
TABLES = Tables({CHANNEL: Table("events", (Column("total", "$.total", "integer"),))})
KINDS = {"duckdb": "duckdb://{}/warehouse.duckdb", "delta": "delta://{}/tables"}
"""Where a folder's warehouse is, by kind."""


def plan_of(folder: Path, kind: str) -> IngestPlan:
    """What a driver is to do. Confirmed batches go soon, so that a cleanup has something to do."""
    wal = WalSettings(path=str(folder / "wal"), confirmed_retention=timedelta(minutes=5))
    return IngestPlan((CHANNEL,), KINDS[kind].format(folder), wal, TABLES, max_rows=PORTION)


class PlainIngest:
    """One driver."""

    def __init__(
        self,
        url: str,
        folder: Path,
        ahead: timedelta = timedelta(0),
        kind: str = "duckdb",
        spread_out: spread.Spread | None = None,
    ) -> None:
        plan = plan_of(folder, kind)
        self.url, self.folder, self.rules = url, folder, plan.rules
        self.connection = Connection([url])
        self.wal = Wal(open_store(plan.wal.path), plan.wal, lambda: datetime.now(UTC) + ahead)
        self.cursors = StoreCursors(self.connection)
        self.committer = Committer(self.wal, self.cursors)
        self.warehouse = open_warehouse(plan.warehouse, plan.tables, spread_out)
        self.loader = Loader(self.wal, self.warehouse)
        self.failed = FailedEvents(self.wal, self.warehouse, plan.tables)
        self.repairs = Repairs(self.wal, self.connection, plan.rules)
        metrics = IngestMetrics()
        freshness = Freshness(metrics, plan.namespace, plan.freshness)
        self.loading = LoaderThread(self.wal, self.loader, self.failed, self.repairs, metrics, freshness)
        self._source = Options.of({"url": url, "channel": CHANNEL})
        self.connection.run(self.connection.backends[0].attach(CHANNEL, CONSUMER))

    def run(self, portion: int, follow: bool) -> None:
        """Recover, then read to the end of the log."""
        if follow:
            self.committer.recover()
        self.loader.recover()
        while self.step(portion):
            self.loader.run_once()
        self.loading.round()
        self._keep_up()

    def _keep_up(self) -> None:
        """Merge files and remove what was replaced, at once: a driver has few of them, and lives briefly."""
        delta_upkeep.FEW, delta_upkeep.UNCOVERED = 2, 5
        now = datetime.now(UTC)
        for task in upkeep_of(self.warehouse.url, 64 << 20, timedelta(0)):
            while any(task.step(now)):
                pass
            task.clean(now)

    def step(self, portion: int) -> bool:
        """One micro-batch, up to its cursor."""
        backend, starts = self.connection.backends[0], self.cursors.positions()
        spot = Spot(0, CHANNEL)
        cuts = self.connection.run(backend.cuts(CHANNEL, starts[spot], portion, portion))
        if not cuts:
            return False
        task = InputPartition((Slice(spot, starts[spot], *cuts[0]),))
        rows = reader.read(self._source, task)
        staged = list(stage(self.wal.store, rows, self.rules, starts, self.wal.clock()))
        self.committer.commit(staged)
        return True

    def close(self) -> None:
        self.warehouse.close()
        self.connection.close()


def drive(
    url: str,
    folder: Path,
    kill: str | None = None,
    skip: int = 0,
    ahead: int = 0,
    kind: str = "duckdb",
    follow: bool = True,
    defect: Callable[[], None] | None = None,
    spread_out: bool = False,
) -> None:
    """One driver, from its start to its end or its death. `follow`: its cursor follows the WAL first.
    `defect` switches a guard off in its process. `spread_out`: into Delta it loads in the way of large
    batches, by what tasks would do on executors."""
    faulthandler.dump_traceback_later(LONG)
    if kill is not None:
        failpoints.activate(kill, "kill", after=skip)
    if defect is not None:
        defect()
    if spread_out:
        spread.SHARE = 1
    elsewhere = (lambda work, parts: spread.in_place(work, parts)) if spread_out else None
    driver = PlainIngest(url, folder, timedelta(seconds=ahead), kind, elsewhere)
    driver.run(PORTION, follow)
    driver.close()
    faulthandler.cancel_dump_traceback_later()
