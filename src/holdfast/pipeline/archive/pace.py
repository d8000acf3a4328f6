"""The archiver's source: the source `holdfast`, paced, and with objects in place of events.

A channel's messages wait until they fill an object, or until the oldest has waited long enough; a run over
what is there now (the trigger availableNow) waits for nothing. Its tasks write what they read, and their rows
describe the objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from holdfast.contracts import Backend
from holdfast.model.log import Cut
from holdfast.pipeline import offsets
from holdfast.pipeline.archive.tasks import WRITTEN, WriteObjects
from holdfast.pipeline.offsets import Offsets, Range, Spot
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import EVERYTHING
from holdfast.pipeline.reader import Stored, StreamReader, read
from holdfast.pipeline.source import HoldfastSource

if TYPE_CHECKING:
    from pyarrow import RecordBatch


def goes_to(cuts: Sequence[Cut], size: int, *, aged: bool) -> str | None:
    """Where the next objects end on a log that was cut after every `size` events. None: nothing is due."""
    if not cuts:
        return None
    if aged or cuts[-1].rows >= size:
        return cuts[-1].position
    return cuts[-2].position if len(cuts) > 1 else None


class ArchiveReader(StreamReader):
    """Offers what is due, and nothing else; writes it where it is read."""

    def __init__(self, options: Options, write: WriteObjects, timeout: timedelta) -> None:
        super().__init__(options)
        self._write, self._size, self._timeout = write, write.batch_size, timeout

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:  # noqa: N802 - Spark's name
        end = super().latestOffset(start, limit)
        if self._target is not None:
            return end
        connection, _ = self._opened()
        stores = len(connection.backends)
        begun, all_of_it = offsets.load(start, stores), offsets.load(end, stores)
        return offsets.dump(all_of_it | connection.run(self._due(connection.backends, begun, all_of_it)))

    def partitions(self, start: Stored, end: Stored) -> list[InputPartition]:
        connection, _ = self._opened()
        # As they stand now, so that a batch that is repeated after its commit writes nothing again.
        floors = connection.run(self._floors(connection.backends))
        return [InputPartition((each, floors)) for each in super().partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        part, floors = partition.value
        return self._write(read(self._options, part), floors)

    async def _floors(self, backends: Sequence[Backend]) -> dict[Spot, str | None]:
        return {
            Spot(partition, cursor.channel): cursor.position
            for partition, backend in enumerate(backends)
            for cursor in await backend.cursors()
            if cursor.name == self._options.consumer
        }

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


def archive_source(label: str, write: WriteObjects, timeout: timedelta) -> type[HoldfastSource]:
    """The source of one job, to be registered under its own name.

    What it writes to travels to the tasks inside of it: as options, credentials would be shown by Spark.
    """

    class ArchiveSource(HoldfastSource):
        @classmethod
        def name(cls) -> str:
            return label

        def schema(self) -> str:
            return WRITTEN

        def streamReader(self, schema: StructType) -> ArchiveReader:  # noqa: N802 - Spark's name
            return ArchiveReader(Options.of(self.options), write, timeout)

    return ArchiveSource
