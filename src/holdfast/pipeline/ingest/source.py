"""The ingest's source: it offers nothing until enough waits, or the oldest has waited long enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from datetime import timedelta

from holdfast.pipeline.ingest.flush import Flush, is_due
from holdfast.pipeline.ingest.tasks import STAGED, StageSegments
from holdfast.pipeline.offsets import Offsets, Range, later, ranges
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import Planner
from holdfast.pipeline.reader import Known, WritingReader
from holdfast.pipeline.source import HoldfastSource, writing_source


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


def ingest_source(label: str, stage: StageSegments, flush: Flush) -> type[HoldfastSource]:
    """The source of one driver, to be registered under a name."""
    return writing_source(label, STAGED, lambda options: IngestReader(options, stage, flush))
