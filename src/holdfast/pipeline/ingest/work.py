"""The work of an ingest while it has the lock: recover, then stage, commit and load, batch by batch."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import failpoints
from holdfast.correlation import correlated
from holdfast.model.errors import HoldfastError, Overloaded
from holdfast.pipeline.archive.checkpoint import discard_if_at_odds
from holdfast.pipeline.archive.failure import explained
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import CONSUMER, Committer, StoreCursors
from holdfast.pipeline.ingest.loading import Loading
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.repair import Repairs, Unrepaired
from holdfast.pipeline.ingest.source import ingest_source
from holdfast.pipeline.ingest.tasks import StageSegments, from_row
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.loader.results import Recovery, Result
from holdfast.pipeline.offsets import Spot, is_after
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.stores import probe
from holdfast.pipeline.stores.address import cloud_environment
from holdfast.pipeline.wal import Batch, Wal
from holdfast.pipeline.wal.health import health
from holdfast.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
NAME = "holdfast-ingest"
"""Of the source, in Spark."""
LOOK, PATIENCE = 0.2, 1.0
LAG_EVERY, LAG_COUNTED = 30.0, 1_000_000
_LOADED = (Result.LOADED, Result.ALREADY)


@dataclass(slots=True)
class Summary:
    """What a run did, in events."""

    written: int = 0
    loaded: int = 0
    failed: int = 0
    left: int = 0
    """In the WAL, and to be loaded later; of a damaged batch that cannot be read, at least one."""
    repaired: int = 0
    """Of damaged batches, staged anew."""
    quarantined: list[Unrepaired] = field(default_factory=list)
    """Damaged batches that are not repaired."""
    unresolved: int = 0
    """Events that failed for good, in this run or before, and that nobody has dealt with."""
    recovery: Recovery = field(default_factory=Recovery)

    @property
    def complete(self) -> bool:
        """Whether the warehouse has every event that was read, but for those that somebody dealt with."""
        return not self.left and not self.quarantined and not self.unresolved


@dataclass(frozen=True)
class Surroundings:
    """What the work needs of its ingest."""

    spark: SparkSession
    urls: Sequence[str]
    plan: IngestPlan
    checkpoint: Path
    wal: Wal
    warehouse: Warehouse
    connection: Connection
    metrics: IngestMetrics
    summary: Summary
    reporter: Reporter
    stop: threading.Event
    still_mine: Callable[[], None]
    """Raises where the ingest's lock is lost."""


class Work:
    """An ingest while it has the lock."""

    def __init__(self, around: Surroundings) -> None:
        self._around, self._wal = around, around.wal
        self._cursors = StoreCursors(around.connection)
        self._committer = Committer(self._wal, self._cursors)
        self._loader = Loader(self._wal, around.warehouse, watch=self._settled)
        plan = around.plan
        failed = FailedEvents(self._wal, around.warehouse, plan.tables, plan.rules.problem)
        repairs = Repairs(self._wal, around.connection, plan.rules, plan.archives)
        self.loading = Loading(self._wal, self._loader, failed, repairs, around.metrics)
        self._reached: dict[Spot, str] = {}
        self._failure: BaseException | None = None
        self._busy = threading.Lock()
        self._open = False

    def recover(self) -> None:
        """Go on from what is durable, whatever a driver before this one left undone."""
        for finding in probe(self._wal.store):
            level = logging.INFO if finding.level == "ok" else logging.WARNING
            log.log(level, "%s: %s", finding.subject, finding.message)
        for batch in self._committer.recover():
            log.info("the cursor of %s follows batch %s", batch.key.channel, batch.name)
        self._around.summary.recovery = self._loader.recover()
        self._around.metrics.recovered(self._around.summary.recovery)
        discard_if_at_odds(self._around.checkpoint, self._cursors.positions())

    def finish(self) -> None:
        """Everything that is there."""
        query = self._start(once=True)
        with contextlib.suppress(Exception):  # said below, in words
            while not query.awaitTermination(1):
                self._around.reporter.look(self._around.connection)
        if (failure := self._failure or query.exception()) is not None:
            raise explained(failure)

    def watch(self, stop: threading.Event) -> None:
        """Let the query run until told to stop or until it fails."""
        query, looked = self._start(once=False), -LAG_EVERY
        try:
            while not stop.wait(LOOK):
                if time.monotonic() - looked >= LAG_EVERY:
                    looked = time.monotonic()
                    self._measure_lag()
                self._around.reporter.look(self._around.connection)
                if not query.isActive:
                    raise explained(self._failure or query.exception())
        finally:
            with self._busy:  # between two batches: one that is interrupted would have to be done again
                self._open = False
            query.stop()

    def _start(self, *, once: bool) -> StreamingQuery:
        self._failure, self._open = None, True
        spark, plan = self._around.spark, self._around.plan
        stage = StageSegments(self._wal.store.url, cloud_environment(), plan.rules)
        spark.dataSource.register(ingest_source(NAME, stage))
        stream = spark.readStream.format(NAME).options(
            url=",".join(self._around.urls),
            channel=",".join(plan.channels),
            consumer=CONSUMER,
            failOnMissingChannel=False,
            maxRowsPerBatch=plan.max_rows,
        )
        writer = stream.load().writeStream.queryName("ingest").foreachBatch(self._ingest_batch)
        writer = writer.option("checkpointLocation", self._around.checkpoint.resolve().as_uri())
        return (writer.trigger(availableNow=True) if once else writer).start()

    def _ingest_batch(self, rows: DataFrame, number: int) -> None:
        try:
            with self._busy, correlated(batch=f"ingest/{number}"):
                if not self._open:
                    raise HoldfastError("told to stop")
                self._commit(rows)
        except BaseException as error:
            self._failure = error
            # Spark gets a short one: it searches the text of errors in a way that long ones do not survive.
            raise RuntimeError(f"{type(error).__name__}: see the ingest's log") from None

    def _commit(self, rows: DataFrame) -> None:
        """One micro-batch: stage, commit, hand over to the loader."""
        started = time.monotonic()
        failpoints.hit("driver.after_offsets")
        self._wait_for_room()
        self._around.still_mine()
        self._refuse_steps_back()
        began, described = time.monotonic(), rows.collect()
        staged = [from_row(row) for row in described]
        starts = {each.spot: row.after for each, row in zip(staged, described, strict=True)}
        metrics = self._around.metrics
        metrics.seconds.labels("stage").observe(time.monotonic() - began)
        self._around.still_mine()
        began = time.monotonic()
        batches = self._committer.commit(staged, starts)
        metrics.seconds.labels("commit").observe(time.monotonic() - began)
        metrics.committed(batches)
        self._around.reporter.batch(_written(batches), time.monotonic() - started)
        self._reached |= {Spot(batch.key.partition, batch.key.channel): batch.key.last for batch in batches}
        self._around.summary.written += sum(batch.rows for batch in batches)
        self.loading.add(batches)
        failpoints.hit("driver.after_batch")

    def _refuse_steps_back(self) -> None:
        """The query is ahead of a cursor that was set back meanwhile, and would pass over events."""
        starts = self._cursors.positions()
        for spot, reached in self._reached.items():
            if spot not in starts or is_after(reached, starts[spot]):
                raise HoldfastError(
                    f"the cursor of {CONSUMER!r} on {spot.channel!r} was set back or removed while the "
                    "ingest was at work; it starts again from there"
                )

    def _wait_for_room(self) -> None:
        """Hold the source back while the WAL is full: the events wait in the log."""
        said = False
        while health(self._wal).full:
            if not said:
                log.warning(
                    "the WAL is full (%s bytes); waiting for the loader", self._around.plan.wal.max_bytes
                )
                said = True
            if self._around.stop.wait(PATIENCE):
                raise Overloaded("the WAL is full, and the ingest was told to stop: nothing was read")

    def _settled(self, batch: Batch, result: Result) -> None:
        failed = len(self._wal.failed_names(batch.name)) if result in _LOADED else 0
        self._around.metrics.settled(batch, result, failed)
        if result in _LOADED:
            self._around.summary.loaded += batch.rows - failed
            self._around.summary.failed += failed
        elif result in (Result.EXPIRED, Result.FAILED):
            self._around.summary.failed += batch.rows

    def _measure_lag(self) -> None:
        metrics, run = self._around.metrics, self._around.connection.run
        try:
            for spot, position in self._cursors.positions().items():
                backend = self._around.connection.backends[spot.partition]
                lag, now = run(backend.behind(spot.channel, position, LAG_COUNTED)), run(backend.now())
                age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
                metrics.lag_events.labels(spot.partition, spot.channel).set(lag.events)
                metrics.lag_seconds.labels(spot.partition, spot.channel).set(age)
        except HoldfastError as error:
            log.warning("the lag could not be measured: %s", error)


def _written(batches: Sequence[Batch]) -> dict[str, Amount]:
    """By channel: a channel has a batch for each store that holds some of it."""
    found: dict[str, Amount] = {}
    for batch in batches:
        rows, size = found.get(batch.key.channel, (0, 0))
        found[batch.key.channel] = Amount(rows + batch.rows, size + batch.bytes)
    return found
