"""The ingest: a stream driver whose sink is the WAL, with a loader beside it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.pipeline.connection import Connection
from holdfast.pipeline.declared import DeclaredSchemas
from holdfast.pipeline.driver import Context, Driver, Sink
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.loader_thread import LoaderThread
from holdfast.pipeline.ingest.metrics import Freshness, IngestMetrics, WalReport
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.repair import DamagedBatch, Repairs
from holdfast.pipeline.ingest.sink import IngestSink
from holdfast.pipeline.loader.decisions import Recovery, Result
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.reports import Reporter
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.upkeep import Upkeep
from holdfast.pipeline.wal import Wal, WalBatch
from holdfast.pipeline.warehouse import open_warehouse
from holdfast.pipeline.warehouse.contract import upkeep_of
from holdfast.pipeline.warehouse.loads import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)
_LOADED = (Result.LOADED, Result.ALREADY)


@dataclass(slots=True)
class IngestSummary:
    """What a run did, in events."""

    written: int = 0
    loaded: int = 0
    failed: int = 0
    left: int = 0
    """In the WAL, and to be loaded later; of a damaged batch that cannot be read, at least one."""
    repaired: int = 0
    """Of damaged batches, staged anew."""
    quarantined: list[DamagedBatch] = field(default_factory=list)
    """Damaged batches that are not repaired."""
    unresolved: int = 0
    """Events that failed for good, in this run or before, and that nobody has dealt with."""
    recovery: Recovery = field(default_factory=Recovery)

    @property
    def complete(self) -> bool:
        """Whether the warehouse has every event that was read, but for those that somebody dealt with."""
        return not self.left and not self.quarantined and not self.unresolved


class Ingest:
    """One ingest."""

    kind, flushes = "ingest", False

    def __init__(self, spark: SparkSession, urls: Sequence[str], plan: IngestPlan, checkpoints: Path) -> None:
        self._plan, self.lock_name = plan, plan.lock_name
        self.metrics, self.summary = IngestMetrics(), IngestSummary()
        self.wal = Wal(open_store(plan.wal.path), plan.wal)
        self.warehouse = open_warehouse(plan.warehouse, plan.tables, run_on_executors(spark))
        self._freshness = Freshness(self.metrics, plan.namespace, plan.freshness)
        report = WalReport(self.wal, self.metrics, self._freshness)
        self.reporter = Reporter(plan.namespace, "ingest", report)
        self._loader_thread: LoaderThread | None = None
        self._upkeep: Upkeep | None = None
        self._driver = Driver(spark, urls, checkpoints, self)

    def run_once(self) -> IngestSummary:
        """Ingest all that is there now; waits for the lock of one that died. Raises `Busy` where another one
        is at work."""
        self._driver.run_once()
        return self._summarised()

    def run(self, stop: threading.Event) -> IngestSummary:
        """Ingest until told to stop. While another one is at work it waits; a failure is tried again."""
        self._driver.run(stop)
        return self._summarised()

    def _summarised(self) -> IngestSummary:
        """The summary, with what is not in the warehouse, from the WAL itself."""
        summary, pending = self.summary, self.wal.pending()
        survey = self.wal.survey()
        failed = FailedEvents(self.wal, self.warehouse, self._plan.tables)
        damaged = {name: self.wal.damage(name) for name in sorted(survey.quarantined)}
        summary.quarantined = [
            DamagedBatch(name, "" if damage is None else damage.error) for name, damage in damaged.items()
        ]
        unread = sum(max(1, self.wal.rows(name)) for name in survey.quarantined - survey.failed)
        summary.left = sum(batch.rows for batch in pending) + unread
        summary.unresolved = failed.unresolved()
        summary.repaired = int(self.metrics.registry.get_sample_value("consumer_wal_repairs_total") or 0)
        return summary

    # The methods of `Job`, which the driver calls.

    @contextlib.contextmanager
    def open(self, context: Context) -> Iterator[Sequence[Sink]]:
        plan, wal = self._plan, self.wal
        loader = Loader(wal, self.warehouse, watch=self._count_result)
        failed = FailedEvents(wal, self.warehouse, plan.tables, plan.rules.problem)
        repairs = Repairs(wal, context.connection, plan.rules, plan.archives)
        thread = LoaderThread(wal, loader, failed, repairs, self.metrics, self._freshness)

        declared = DeclaredSchemas(context.connection, plan.namespace, plan.tables)

        def recover() -> None:
            declared.refresh({channel for batch in wal.pending() for channel in batch.channels})
            self.summary.recovery = loader.recover()
            self.metrics.recovered(self.summary.recovery)

        def committed(batch: WalBatch) -> None:
            self.summary.written += batch.rows
            self._freshness.committed(batch)
            declared.refresh(batch.channels)
            thread.add(batch)

        self._loader_thread = thread
        tables = partial(upkeep_of, plan.warehouse, plan.compaction.file_size, plan.compaction.keep)
        self._upkeep = Upkeep(tables, plan.compaction, context.check_lock)
        try:
            yield [IngestSink(plan, wal, context, self.metrics, self.reporter, recover, committed)]
        finally:
            self._loader_thread = self._upkeep = None
            self.warehouse.close()

    @contextlib.contextmanager
    def beside(self, *, once: bool) -> Iterator[None]:
        """Run the loader and compaction. With `once`, the loader waits in the end for what others hold."""
        thread, upkeep = self._loader_thread, self._upkeep
        if thread is None or upkeep is None:
            raise RuntimeError("a loader runs only while the lock is held")
        thread.start()
        try:
            with upkeep.beside():
                yield
        finally:
            if not thread.stop(None if once else self._plan.wal.close_timeout):
                log.warning("the loader did not stop in time; its batch goes on from the WAL")
        if once:
            thread.drain()

    def look(self, connection: Connection) -> None:
        self._freshness.look(connection)

    def progress(self) -> object:
        return self.summary.written

    def failed(self) -> None:
        """The reporter counts it."""

    def _count_result(self, batch: WalBatch, result: Result) -> None:
        failed = len(self.wal.left_out(batch.name)) if result in _LOADED else 0
        self.metrics.count_result(batch, result, failed)
        if result in _LOADED:
            self._freshness.loaded(batch)
            self.summary.loaded += batch.rows - failed
            self.summary.failed += failed
        elif result in (Result.EXPIRED, Result.FAILED):
            self.summary.failed += batch.rows
