"""The WAL as a sink: all channels in one batch, which tasks stage, and the driver makes pending."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import failpoints
from holdfast.model.errors import HoldfastError, Overloaded
from holdfast.pipeline.driver import Context, look_at
from holdfast.pipeline.ingest.commit import CONSUMER, Committer, StoreCursors
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.source import ingest_source
from holdfast.pipeline.ingest.tasks import StageSegments, from_row
from holdfast.pipeline.offsets import Spot, is_after
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.source import HoldfastSource
from holdfast.pipeline.stores.address import cloud_environment
from holdfast.pipeline.wal import Batch, Wal
from holdfast.pipeline.wal.health import health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
PATIENCE = 1.0


@dataclass
class IngestSink:
    """One driver's way into the WAL."""

    plan: IngestPlan
    wal: Wal
    context: Context
    metrics: IngestMetrics
    reporter: Reporter
    recover: Callable[[], None]
    """What else is to be done at a start, once the cursors have followed the WAL."""
    committed: Callable[[Batch], None]
    name: str = "ingest"

    def __post_init__(self) -> None:
        self.every: timedelta = self.plan.flush.look
        self._cursors = StoreCursors(self.context.connection)
        self._committer = Committer(self.wal, self._cursors)
        self._reached: dict[Spot, str] = {}

    def prepare(self) -> Mapping[Spot, str | None]:
        """Go on from what is durable, whatever a driver before this one left undone."""
        look_at(self.wal.store)
        for part in self._committer.recover():
            log.info("the cursor of %s follows the WAL to %s", part.channel, part.last)
        self.recover()
        return self._cursors.positions()

    def source(self, label: str) -> type[HoldfastSource]:
        """See the contract."""
        stage = StageSegments(self.wal.store.url, cloud_environment(), self.plan.rules)
        return ingest_source(label, stage, self.plan.flush)

    def options(self) -> Mapping[str, Any]:
        """See the contract."""
        return {
            "channel": ",".join(self.plan.channels),
            "consumer": CONSUMER,
            "maxRowsPerBatch": self.plan.max_rows,
        }

    def commit(self, rows: DataFrame, number: int) -> None:
        """One micro-batch: stage, commit, hand over to the loader."""
        started = time.monotonic()
        failpoints.hit("driver.after_offsets")
        self._wait_for_room()
        self.context.check_lock()
        self._refuse_steps_back()
        began = time.monotonic()
        staged = [from_row(row) for row in rows.collect()]
        self.metrics.seconds.labels("stage").observe(time.monotonic() - began)
        self.context.check_lock()
        began = time.monotonic()
        batch = self._committer.commit(staged)
        if batch is None:
            return
        self.metrics.seconds.labels("commit").observe(time.monotonic() - began)
        self.metrics.committed(batch)
        self.reporter.batch(_written(batch), time.monotonic() - started)
        self._reached |= {part.spot: part.last for part in batch.parts}
        self.committed(batch)
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
        while health(self.wal).full:
            if not said:
                log.warning("the WAL is full (%s bytes); waiting for the loader", self.plan.wal.max_bytes)
                said = True
            if self.context.stop.wait(PATIENCE):
                raise Overloaded("the WAL is full, and the ingest was told to stop: nothing was read")


def _written(batch: Batch) -> dict[str, Amount]:
    """By channel, with bytes by its share of the rows."""
    found: dict[str, Amount] = {}
    for part in batch.parts:
        rows, size = found.get(part.channel, (0, 0))
        found[part.channel] = Amount(rows + part.rows, size + batch.bytes * part.rows // max(1, batch.rows))
    return found
