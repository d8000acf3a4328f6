"""The data source `holdfast`: channels as rows, in batch and as a stream.

    spark.readStream.format("holdfast").option("url", …).option("channel", "gbe.events.>").load()

Spark finds it through the module `pyspark_holdfast`; docs/spark.md says what its options mean. Its
readers plan on the driver and read in tasks.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.errors import DataLost, InvalidInput
from holdfast.model.log import Page, Part
from holdfast.pipeline import offsets, slices
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import ChannelPartition, Offsets, is_after
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import Planner
from holdfast.pipeline.slices import Slice

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger(__name__)


Stored = dict[str, dict[str, str]]
"""Offsets as Spark keeps them."""
Known = dict[ChannelPartition, tuple[str | None, str | None]]
"""The cursor of each channel, and when the first event after it was published, where that is known."""
Write = Callable[[Iterator["RecordBatch"], Known], Iterator["RecordBatch"]]
"""What a task does with its rows."""


class BatchReader(DataSourceReader):
    """Everything from one place to another, as it stood when the query was planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        with Connection(self._options.urls) as connection:
            planner = Planner(self._options, connection.backends)
            start = connection.run(planner.beginning())
            end = connection.run(planner.ending(self._options.end or "latest"))
            return _plan(connection, planner, start, end)

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as a stream. The driver's reader plans and keeps its connection; a task's reader only reads.

    It moves no cursor. Spark reports a batch as done when it begins to build the next one, so the cursor
    belongs to whoever knows that the batch is durable: the sink.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._open: tuple[Connection, Planner] | None = None
        self._target: Offsets | None = None

    def initialOffset(self) -> Stored:  # noqa: N802 - Spark's name
        connection, planner = self._opened()
        return offsets.dump(connection.run(planner.beginning()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        connection, planner = self._opened()
        self._target = connection.run(planner.ending("latest"))

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:  # noqa: N802 - Spark's name
        failpoints.hit("source.before_plan")
        connection, planner = self._opened()
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begun = offsets.load(start, len(connection.backends))
        return offsets.dump(connection.run(self._latest(planner, begun, rows)))

    def partitions(self, start: Stored, end: Stored) -> list[InputPartition]:
        connection, planner = self._opened()
        stores = len(connection.backends)
        return _plan(connection, planner, offsets.load(start, stores), offsets.load(end, stores))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read(self._options, partition)

    async def _latest(self, planner: Planner, start: Offsets, rows: int | None) -> Offsets:
        """How far the next batch goes."""
        return await planner.latest(start, rows, self._target)

    def stop(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _opened(self) -> tuple[Connection, Planner]:
        if self._options.end is not None:  # not before: Spark hides what is raised while it makes a reader
            raise InvalidInput(
                "endingPosition is for batch reads; use the trigger availableNow for a stream that ends"
            )
        if self._open is None:
            connection = Connection(self._options.urls)
            self._open = connection, Planner(self._options, connection.backends)
        return self._open


class WritingReader(StreamReader):
    """For a stream consumer: its tasks write what they read beyond its cursors, and their rows describe it.

    So events never pass through the JVM, which would cost more than reading and writing together.
    """

    def __init__(self, options: Options, write: Write) -> None:
        super().__init__(options)
        self._write = write

    def partitions(self, start: Stored, end: Stored) -> list[InputPartition]:
        connection, _ = self._opened()
        stores = len(connection.backends)
        begun, ends = offsets.load(start, stores), offsets.load(end, stores)
        planned = super().partitions(start, end)
        # As they are now, so that a batch that is repeated after its commit writes nothing again.
        known = connection.run(self._known(begun, ends))
        return [InputPartition((each, known)) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        part, known = partition.value
        return self._write(read(self._options, part), known)

    async def _known(self, start: Offsets, end: Offsets) -> Known:
        """What the tasks have to know of the channels that they read."""
        floors = await self._cursors()
        return {each.spot: (floors.get(each.spot), None) for each in offsets.ranges(start, end)}

    async def _cursors(self) -> Offsets:
        """The cursors of the consumer."""
        return {
            ChannelPartition(partition, cursor.channel): cursor.position
            for partition, backend in enumerate(self._opened()[0].backends)
            for cursor in await backend.cursors.all()
            if cursor.name == self._options.consumer
        }


def _plan(connection: Connection, planner: Planner, start: Offsets, end: Offsets) -> list[InputPartition]:
    parts, rows = connection.run(planner.plan(start, end))
    return [InputPartition(group) for group in slices.pack(parts, rows)]


def read(options: Options, partition: InputPartition) -> Iterator[RecordBatch]:
    """The rows of one task, from the slices that were planned for it."""
    from holdfast.pipeline.arrow import to_batch, to_one_batch

    parts: tuple[Slice, ...] = partition.value or ()
    if not parts:  # Spark plans one task even where there is nothing to read
        return
    store = options.urls[parts[0].spot.partition :][:1]
    with Connection(store, connections=1) as connection:
        [backend] = connection.backends
        for group in slices.group_small(parts):
            while group:
                at_once = len(group) > 1 and connection.run(_at_once(backend, group))
                if at_once:
                    failpoints.hit("source.mid_read")
                    its = zip(group, at_once, strict=False)
                    yield to_one_batch([(part.spot, page) for part, page in its])
                    group = group[len(at_once) :]
                    continue
                # Larger than planned: the first one page by page. Or trimmed: each by itself.
                alone = group[:1] if at_once == [] else group
                group = group[len(alone) :]
                for part in alone:
                    for page in connection.iterate(_pages(backend, part, options.fail_on_loss)):
                        failpoints.hit("source.mid_read")
                        yield to_batch(part.spot, page)


async def _at_once(backend: Backend, group: Sequence[Slice]) -> list[Page] | None:
    """A page for each of the first slices, as many as are small; None where something was trimmed."""
    try:
        return await backend.log.read_parts(
            [Part(part.spot.channel, part.after, part.until) for part in group]
        )
    except DataLost:
        return None


async def _pages(backend: Backend, part: Slice, fail_on_loss: bool) -> AsyncGenerator[Page]:
    """A slice's pages. What was trimmed since it was planned is passed over, where that is allowed."""
    channel, after = part.spot.channel, part.after
    while True:
        pages = cast("AsyncGenerator[Page]", backend.log.pages(channel, after, part.until, part.page))
        try:
            async with aclosing(pages):
                async for page in pages:
                    yield page
                    after = page.positions[-1]
            return
        except DataLost as loss:
            trimmed = (await backend.log.extent(channel)).trimmed
            if fail_on_loss or trimmed is None or not is_after(trimmed, after):
                raise
            log.warning("%s; going on after it (failOnDataLoss=false)", loss)
            after = trimmed


SCHEMA = (
    "channel string, position string, id string, source string, type string, key string, "
    "time timestamp, headers map<string,string>, data binary, partition int"
)


class HoldfastSource(DataSource):
    """What `format("holdfast")` makes."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> str:
        """A wrong option and a channel that is not there are said at `load`, not when the query runs."""
        options = Options.of(self.options)
        if options.fail_on_missing:
            with Connection(options.urls, connections=1) as connection:
                connection.run(Planner(options, connection.backends).check_channels())
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(Options.of(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(Options.of(self.options))


def writing_source(
    label: str, described: str, make: Callable[[Options], WritingReader]
) -> type[HoldfastSource]:
    """The source of one sink, to be registered under a name; `described` is the schema of what tasks report.

    Where they write travels to the tasks inside of it: as options, credentials would be shown by Spark.
    """

    class WritingSource(HoldfastSource):
        @classmethod
        def name(cls) -> str:
            return label

        def schema(self) -> str:
            return described

        def streamReader(self, schema: StructType) -> WritingReader:  # noqa: N802 - Spark's name
            return make(Options.of(self.options))

    return WritingSource
