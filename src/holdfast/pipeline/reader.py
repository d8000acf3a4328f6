"""The readers that Spark calls: to plan on the driver, to read in tasks."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, cast

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.errors import DataLost
from holdfast.model.log import Page
from holdfast.pipeline import offsets, portions
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import Offsets, is_after
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import Planner
from holdfast.pipeline.portions import Slice

if TYPE_CHECKING:
    from pyarrow import RecordBatch

log = logging.getLogger(__name__)

Stored = dict[str, dict[str, str]]
"""Offsets as Spark keeps them."""


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
        return offsets.dump(connection.run(planner.latest(begun, rows, self._target)))

    def partitions(self, start: Stored, end: Stored) -> list[InputPartition]:
        connection, planner = self._opened()
        stores = len(connection.backends)
        return _plan(connection, planner, offsets.load(start, stores), offsets.load(end, stores))

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        return read(self._options, partition)

    def stop(self) -> None:
        if self._open is not None:
            self._open[0].close()
            self._open = None

    def _opened(self) -> tuple[Connection, Planner]:
        if self._open is None:
            connection = Connection(self._options.urls)
            self._open = connection, Planner(self._options, connection.backends)
        return self._open


def _plan(connection: Connection, planner: Planner, start: Offsets, end: Offsets) -> list[InputPartition]:
    parts, rows = connection.run(planner.plan(start, end))
    return [InputPartition(group) for group in portions.pack(parts, rows)]


def read(options: Options, partition: InputPartition) -> Iterator[RecordBatch]:
    """The rows of one task, from the slices that were planned for it."""
    from holdfast.pipeline.arrow import to_batch

    parts: tuple[Slice, ...] = partition.value or ()
    if not parts:  # Spark plans one task even where there is nothing to read
        return
    store = options.urls[parts[0].spot.partition :][:1]
    with Connection(store, connections=1) as connection:
        [backend] = connection.backends
        for part in parts:
            for page in connection.iterate(_pages(backend, part, options.fail_on_loss)):
                failpoints.hit("source.mid_read")
                yield to_batch(part.spot, page)


async def _pages(backend: Backend, part: Slice, fail_on_loss: bool) -> AsyncGenerator[Page]:
    """A slice's pages. What was trimmed since it was planned is passed over, where that is allowed."""
    channel, after = part.spot.channel, part.after
    while True:
        pages = cast("AsyncGenerator[Page]", backend.pages(channel, after, part.until, part.page))
        try:
            async with aclosing(pages):
                async for page in pages:
                    yield page
                    after = page.positions[-1]
            return
        except DataLost as loss:
            trimmed = (await backend.extent(channel)).trimmed
            if fail_on_loss or trimmed is None or not is_after(trimmed, after):
                raise
            log.warning("%s; going on after it (failOnDataLoss=false)", loss)
            after = trimmed
