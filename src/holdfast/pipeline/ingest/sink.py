"""The WAL as a sink: all channels in one batch, which tasks stage, and the driver makes pending.

The source offers nothing until enough waits, or the oldest has waited long enough.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import failpoints
from holdfast.model.errors import HoldfastError, Overloaded
from holdfast.pipeline.driver import Context, log_probe
from holdfast.pipeline.ingest.commit import CONSUMER, StoreCursors, WalCommitter
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.ingest.plan import Flush, IngestPlan, is_due
from holdfast.pipeline.ingest.staging import STAGED, StageSegments, from_row
from holdfast.pipeline.offsets import ChannelPartition, Offsets, Range, is_after, later, ranges
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import Planner
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.source import HoldfastSource, Known, WritingReader, writing_source
from holdfast.pipeline.stores import cloud_environment
from holdfast.pipeline.wal import Wal, WalBatch
from holdfast.pipeline.wal.status import health

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)
PATIENCE = 1.0


class IngestReader(WritingReader):
    """Stages what lies beyond the cursors, where it is read, in batches of all channels together."""

    def __init__(self, options: Options, stage: StageSegments, flush: Flush) -> None:
        super().__init__(options, stage)
        self._flush = flush
        self._idle_until = 0.0

    async def _latest(self, planner: Planner, start: Offsets, rows: int | None) -> Offsets:
        if self._target is not None or rows is None:  # a run over what is there waits for nothing
            return await super()._latest(planner, start, rows)
        if time.monotonic() < self._idle_until:
            return start
        end, news = await planner.news(start)
        if not news:
            self._idle_until = time.monotonic() + (self._flush.every - self._flush.look).total_seconds()
            return end
        admitted = await planner.admit(news, rows)
        age = await self._age(planner, news)
        due = is_due(
            admitted.rows, admitted.bytes, age, self._flush._replace(rows=min(rows, self._flush.rows))
        )
        return end | admitted.ends if due else end

    async def _age(self, planner: Planner, news: Iterable[Range]) -> timedelta:
        """How long the oldest event waits, by the clock of its store."""
        backends = self._opened()[0].backends
        times = await asyncio.gather(*(backend.now() for backend in backends))
        since = await planner.since(news)
        return max((times[spot.partition] - at for spot, at in since.items()), default=timedelta(0))

    async def _known(self, start: Offsets, end: Offsets) -> Known:
        wanted = list(ranges(start, end))
        cursors, since = await self._cursors(), await self._opened()[1].since(wanted)
        times = {spot: at.isoformat() for spot, at in since.items()}
        # A query that is ahead of a cursor holds nothing of what lies between: the commit sees it by this.
        return {spot: (later(cursors.get(spot), after), times.get(spot)) for spot, after, _ in wanted}


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
    committed: Callable[[WalBatch], None]
    name: str = "ingest"

    def __post_init__(self) -> None:
        self.every: timedelta = self.plan.flush.look
        self._cursors = StoreCursors(self.context.connection)
        self._committer = WalCommitter(self.wal, self._cursors)
        self._reached: dict[ChannelPartition, str] = {}

    def prepare(self) -> Mapping[ChannelPartition, str | None]:
        """Go on from what is durable, whatever a driver before this one left undone."""
        log_probe(self.wal.store)
        for part in self._committer.recover():
            log.info("the cursor of %s follows the WAL to %s", part.channel, part.last)
        self.recover()
        return self._cursors.positions()

    def source(self, label: str) -> type[HoldfastSource]:
        stage = StageSegments(self.wal.store.url, cloud_environment(), self.plan.rules)
        flush = self.plan.flush  # of its own: what the reader holds is pickled
        return writing_source(label, STAGED, lambda options: IngestReader(options, stage, flush))

    def options(self) -> Mapping[str, Any]:
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


def _written(batch: WalBatch) -> dict[str, Amount]:
    """By channel, with bytes by its share of the rows."""
    found: dict[str, Amount] = {}
    for part in batch.parts:
        rows, size = found.get(part.channel, (0, 0))
        found[part.channel] = Amount(rows + part.rows, size + batch.bytes * part.rows // max(1, batch.rows))
    return found
