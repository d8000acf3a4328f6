"""The pace: a channel's messages wait until they fill an object, or until the oldest has waited long enough.

The source `holdfast_archive` is the source `holdfast` with this on top. A run over what is there now
(the trigger availableNow) waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from datetime import timedelta

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from holdfast.contracts import Backend
from holdfast.model.duration import parse_duration
from holdfast.model.log import Cut
from holdfast.pipeline import offsets
from holdfast.pipeline.offsets import Offsets, Range
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import EVERYTHING
from holdfast.pipeline.reader import Stored, StreamReader
from holdfast.pipeline.source import HoldfastSource

_SIZE, _TIMEOUT = "batchSize", "batchTimeout"


def goes_to(cuts: Sequence[Cut], size: int, *, aged: bool) -> str | None:
    """Where the next objects end on a log that was cut after every `size` events. None: nothing is due."""
    if not cuts:
        return None
    if aged or cuts[-1].rows >= size:
        return cuts[-1].position
    return cuts[-2].position if len(cuts) > 1 else None


class PacedReader(StreamReader):
    """Offers what is due, and nothing else."""

    def __init__(self, options: Options, size: int, timeout: timedelta) -> None:
        super().__init__(options)
        self._size, self._timeout = size, timeout

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:  # noqa: N802 - Spark's name
        end = super().latestOffset(start, limit)
        if self._target is not None:
            return end
        connection, _ = self._opened()
        stores = len(connection.backends)
        begun, all_of_it = offsets.load(start, stores), offsets.load(end, stores)
        return offsets.dump(all_of_it | connection.run(self._due(connection.backends, begun, all_of_it)))

    async def _due(self, backends: Sequence[Backend], start: Offsets, end: Offsets) -> Offsets:
        async def due(each: Range) -> str | None:
            backend, channel = backends[each.spot.partition], each.spot.channel
            cuts = await backend.cuts(channel, each.after, EVERYTHING, self._size, each.until)
            lag = await backend.behind(channel, each.after, 1)
            aged = lag.oldest is not None and await backend.now() - lag.oldest >= self._timeout
            return goes_to(cuts, self._size, aged=aged) or each.after

        news = list(offsets.ranges(start, end))
        ends = await asyncio.gather(*map(due, news))
        return {each.spot: position for each, position in zip(news, ends, strict=True)}


class ArchiveSource(HoldfastSource):
    """The source `holdfast` with the options `batchSize` and `batchTimeout`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._size, self._timeout = int(options[_SIZE]), parse_duration(options[_TIMEOUT])
        ours = (_SIZE.lower(), _TIMEOUT.lower())
        super().__init__({name: value for name, value in options.items() if name.lower() not in ours})

    @classmethod
    def name(cls) -> str:
        return "holdfast_archive"

    def streamReader(self, schema: StructType) -> PacedReader:  # noqa: N802 - Spark's name
        return PacedReader(Options.of(self.options), self._size, self._timeout)
