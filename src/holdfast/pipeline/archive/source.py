"""The archiver's source: the source `holdfast`, with objects in place of events.

A channel's messages wait until they fill an object, or until the oldest has waited long enough; a run over
what is there now (the trigger availableNow) waits for nothing. A task writes the objects itself, and its rows
describe them: events do not pass through the JVM, which would cost more than all the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from holdfast.model.log import Cut
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.offsets import Offsets, Range, ranges
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import NO_LIMIT, Planner
from holdfast.pipeline.source import HoldfastSource, Known, WritingReader, writing_source
from holdfast.pipeline.stores import open_store

_COLUMNS = (
    "object string, channel string, partition int, first string, last string, rows long, bytes long, "
    "sha256 string, after string"
)
_SCHEMA = pa.schema(
    {
        "object": pa.string(),
        "channel": pa.string(),
        "partition": pa.int32(),
        "first": pa.string(),
        "last": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "sha256": pa.string(),
        "after": pa.string(),
    }
)


@dataclass(frozen=True)
class WriteObjects:
    """A task's rows in, a row for each object out: what it holds, and the cursor that it was written for."""

    destination: str
    environment: Mapping[str, str]
    batch_size: int

    def __call__(self, batches: Iterable[pa.RecordBatch], known: Known) -> Iterator[pa.RecordBatch]:
        """Write all of a task's rows that lie beyond the cursors."""
        store = open_store(self.destination, self.environment)
        floors = {spot: cursor for spot, (cursor, _) in known.items()}
        written = [
            (*each, floors.get(each.spot))
            for each in ObjectWriter(store, self.batch_size, floors).write(batches)
        ]
        if written:
            columns = zip(zip(*written, strict=True), _SCHEMA.types, strict=True)
            arrays = [pa.array(column, kind) for column, kind in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)


def end_of_objects(cuts: Sequence[Cut], size: int, *, aged: bool) -> str | None:
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
            cuts = await backend.log.cuts(spot.channel, each.after, NO_LIMIT, self._size, each.until)
            return end_of_objects(cuts, self._size, aged=aged) or each.after

        ends = await asyncio.gather(*map(due, news))
        return {each.spot: position for each, position in zip(news, ends, strict=True)}


def archive_source(label: str, write: WriteObjects, timeout: timedelta) -> type[HoldfastSource]:
    """The source of one policy, to be registered under a name of its own."""
    return writing_source(label, _COLUMNS, lambda options: ArchiveReader(options, write, timeout))
