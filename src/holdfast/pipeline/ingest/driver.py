"""The ingest: one driver at a time, under a lock; until it is told to stop, or over what is there.

Executors validate and stage; the driver makes the batch pending, moves the cursor, and loads.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.repair import Unrepaired
from holdfast.pipeline.ingest.walreport import WalReport
from holdfast.pipeline.ingest.work import Summary, Surroundings, Work
from holdfast.pipeline.reports import Reporter
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.turns import FIRST_DELAY, LOOK, Busy, again, outwait_the_dead, turn
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.warehouse import open_warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


class Ingest:
    """One driver."""

    def __init__(self, spark: SparkSession, urls: Sequence[str], plan: IngestPlan, checkpoints: Path) -> None:
        self._spark, self._urls, self._plan = spark, urls, plan
        self._checkpoint = checkpoints / "ingest"
        self._stop = threading.Event()
        self.metrics, self.summary = IngestMetrics(), Summary()
        self.wal = Wal(open_store(plan.wal.path), plan.wal)
        self.warehouse = open_warehouse(plan.warehouse, plan.tables)
        self._reporter = Reporter(plan.namespace, "ingest", WalReport(self.wal, self.metrics))

    def run_once(self) -> Summary:
        """Ingest all that is there now. `Busy` where another one is at work; one that died is outwaited."""
        with self._work(outwait_the_dead()) as work:
            work.loading.start()
            try:
                work.finish()
            finally:
                work.loading.stop()
            work.loading.drain()
        return self._concluded()

    def run(self, stop: threading.Event) -> Summary:
        """Ingest until told to stop. While another one is at work it waits; a failure is tried again."""
        self._stop, delay = stop, FIRST_DELAY
        while not stop.is_set():
            written = self.summary.written
            try:
                with self._work(lambda: not stop.wait(LOOK)) as work:
                    work.loading.start()
                    try:
                        work.watch(stop)
                    finally:
                        if not work.loading.stop(self._plan.wal.close_timeout):
                            log.warning("the loader did not stop in time; its batch goes on from the WAL")
            except Busy:
                break  # told to stop while it waited
            except HoldfastError as error:
                if stop.is_set():
                    raise
                delay = again(stop, error, delay, progressed=self.summary.written > written)
        return self._concluded()

    def _concluded(self) -> Summary:
        """The summary, with what is not in the warehouse, from the WAL itself."""
        summary, pending = self.summary, self.wal.pending()
        survey = self.wal.survey()
        failed = FailedEvents(self.wal, self.warehouse, self._plan.tables)
        summary.quarantined = [
            Unrepaired(name, _damage(self.wal, name)) for name in sorted(survey.quarantined)
        ]
        unread = sum(max(1, self.wal.rows(name)) for name in survey.quarantined - survey.failed)
        summary.left = sum(batch.rows for batch in pending) + unread
        summary.unresolved = failed.unresolved()
        summary.repaired = int(self.metrics.registry.get_sample_value("consumer_wal_repairs_total") or 0)
        return summary

    @contextlib.contextmanager
    def _work(self, wait: Callable[[], bool]) -> Iterator[Work]:
        """The work, recovered, while this ingest has the lock; `wait` says whether to ask for it again."""
        name = self._plan.lock_name
        with (
            Connection(self._urls) as connection,
            turn(connection, name, "ingest", wait) as still_mine,
            self._reporter.at_work(connection),
        ):
            try:
                work = Work(self._around(connection, still_mine))
                work.recover()
                yield work
            finally:
                self.warehouse.close()

    def _around(self, connection: Connection, still_mine: Callable[[], None]) -> Surroundings:
        return Surroundings(
            spark=self._spark,
            urls=self._urls,
            plan=self._plan,
            checkpoint=self._checkpoint,
            wal=self.wal,
            warehouse=self.warehouse,
            connection=connection,
            metrics=self.metrics,
            summary=self.summary,
            reporter=self._reporter,
            stop=self._stop,
            still_mine=still_mine,
        )


def _damage(wal: Wal, name: str) -> str:
    found = wal.damage(name)
    return "" if found is None else found.error
