"""The pipeline without Spark: the steps of its jobs in one process, which is cheap to kill.

The archiver has the same writer and the same commit, over a backend's own pages. The ingest reads a portion
of the log as a task would, stages, commits, loads, mirrors and cleans up.
"""

from __future__ import annotations

import faulthandler
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.pipeline import source
from holdfast.pipeline.archive.commit import Committer as ArchiveCommitter
from holdfast.pipeline.archive.commit import Orphans
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import CONSUMER, StoreCursors
from holdfast.pipeline.ingest.commit import WalCommitter as IngestCommitter
from holdfast.pipeline.ingest.loader_thread import LoaderThread
from holdfast.pipeline.ingest.metrics import Freshness, IngestMetrics
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.repair import Repairs
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.options import Options
from holdfast.pipeline.slices import Slice
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.warehouse import Column, Table, Tables, delta_upkeep, loads, open_warehouse
from holdfast.pipeline.warehouse.contract import upkeep_of


async def archive(backends: Sequence[Backend], store: ObjectStore, policy: ArchivePolicy, rows: int) -> int:
    """Everything that is there, `rows` of each channel to a commit. Returns how many commits there were."""
    committer = ArchiveCommitter(backends, store, policy)
    await committer.attach()
    await committer.recover()
    orphans = Orphans(store, await committer.cursors())
    count = 0
    while True:
        cursors = await committer.cursors()
        batches = [batch async for batch in _next_batches(backends, cursors, rows)]
        written = list(ObjectWriter(store, policy.batch_size, cursors).write(batches))
        if not written:
            return count
        committed = await committer.commit(cursors, written)
        orphans.remove(committed)
        count += len(committed)


async def _next_batches(
    backends: Sequence[Backend], cursors: dict[ChannelPartition, str | None], rows: int
) -> AsyncIterator[pa.RecordBatch]:
    for spot, after in cursors.items():
        backend = backends[spot.partition]
        for cut in (await backend.log.cuts(spot.channel, after, rows, rows))[:1]:
            async for page in backend.log.pages(spot.channel, after, cut.position, 50):
                yield to_batch(spot, page)


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


class SparklessIngest:
    """One driver."""

    def __init__(
        self,
        url: str,
        folder: Path,
        ahead: timedelta = timedelta(0),
        kind: str = "duckdb",
        spread_out: loads.TaskRunner | None = None,
    ) -> None:
        plan = plan_of(folder, kind)
        self.url, self.folder, self.rules = url, folder, plan.rules
        self.connection = Connection([url])
        self.wal = Wal(open_store(plan.wal.path), plan.wal, lambda: datetime.now(UTC) + ahead)
        self.cursors = StoreCursors(self.connection)
        self.committer = IngestCommitter(self.wal, self.cursors)
        self.warehouse = open_warehouse(plan.warehouse, plan.tables, spread_out)
        self.loader = Loader(self.wal, self.warehouse)
        self.failed = FailedEvents(self.wal, self.warehouse, plan.tables)
        self.repairs = Repairs(self.wal, self.connection, plan.rules)
        metrics = IngestMetrics()
        freshness = Freshness(metrics, plan.namespace, plan.freshness)
        self.loading = LoaderThread(self.wal, self.loader, self.failed, self.repairs, metrics, freshness)
        self._source = Options.of({"url": url, "channel": CHANNEL})
        self.connection.run(self.connection.backends[0].cursors.attach(CHANNEL, CONSUMER))

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
        spot = ChannelPartition(0, CHANNEL)
        cuts = self.connection.run(backend.log.cuts(CHANNEL, starts[spot], portion, portion))
        if not cuts:
            return False
        task = InputPartition((Slice(spot, starts[spot], *cuts[0]),))
        rows = source.read(self._source, task)
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
        loads.TASK_BYTES = 1
    elsewhere = (lambda work, parts: loads.run_in_place(work, parts)) if spread_out else None
    driver = SparklessIngest(url, folder, timedelta(seconds=ahead), kind, elsewhere)
    driver.run(PORTION, follow)
    driver.close()
    faulthandler.cancel_dump_traceback_later()
