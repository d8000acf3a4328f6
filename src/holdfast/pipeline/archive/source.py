"""The archiver's source: the source `holdfast`, paced, and with objects in place of events.

A channel's messages wait until they fill an object, or until the oldest has waited long enough; a run over
what is there now (the trigger availableNow) waits for nothing. Its tasks write what they read, and their rows
describe the objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from holdfast.model.log import Cut
from holdfast.pipeline.archive.tasks import WRITTEN, WriteObjects
from holdfast.pipeline.offsets import Offsets, Range, ranges
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import EVERYTHING, Planner
from holdfast.pipeline.reader import WritingReader
from holdfast.pipeline.source import HoldfastSource, writing_source


def goes_to(cuts: Sequence[Cut], size: int, *, aged: bool) -> str | None:
    """Where the next objects end on a log that was cut after every `size` events. None: nothing is due."""
    if not cuts:
        return None
    if aged or cuts[-1].rows >= size:
        return cuts[-1].position
    return cuts[-2].position if len(cuts) > 1 else None


class ArchiveReader(WritingReader):
    """Offers what is due, and nothing else; writes it where it is read."""

    def __init__(self, options: Options, write: WriteObjects, timeout: timedelta) -> None:
        super().__init__(options, write)
        self._size, self._timeout = write.batch_size, timeout

    async def _latest(self, planner: Planner, start: Offsets, rows: int | None) -> Offsets:
        end = await super()._latest(planner, start, rows)
        return end if self._target is not None else end | await self._due(planner, start, end)

    async def _due(self, planner: Planner, start: Offsets, end: Offsets) -> Offsets:
        backends = self._opened()[0].backends
        times = await asyncio.gather(*(backend.now() for backend in backends))
        news = list(ranges(start, end))
        since = await planner.since(news)

        async def due(each: Range) -> str | None:
            spot, known = each.spot, planner.small(each)
            aged = spot in since and times[spot.partition] - since[spot] >= self._timeout
            if known is not None and known.rows < self._size:
                return each.until if aged else each.after
            backend = backends[spot.partition]
            cuts = await backend.cuts(spot.channel, each.after, EVERYTHING, self._size, each.until)
            return goes_to(cuts, self._size, aged=aged) or each.after

        ends = await asyncio.gather(*map(due, news))
        return {each.spot: position for each, position in zip(news, ends, strict=True)}


def archive_source(label: str, write: WriteObjects, timeout: timedelta) -> type[HoldfastSource]:
    """The source of one policy, to be registered under a name of its own."""
    return writing_source(label, WRITTEN, lambda options: ArchiveReader(options, write, timeout))
