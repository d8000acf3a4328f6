"""The ingest's source: the source `holdfast`, with segments of the WAL in place of events.

Its tasks stage what they read, and their rows describe the segments. So events never pass through the JVM,
which would cost more than reading and staging together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from holdfast.pipeline import offsets
from holdfast.pipeline.ingest.commit import StoreCursors
from holdfast.pipeline.ingest.tasks import STAGED, StageSegments
from holdfast.pipeline.offsets import later
from holdfast.pipeline.options import Options
from holdfast.pipeline.reader import Stored, StreamReader, read
from holdfast.pipeline.source import HoldfastSource

if TYPE_CHECKING:
    from pyarrow import RecordBatch


class IngestReader(StreamReader):
    """Stages what lies beyond the cursors, where it is read."""

    def __init__(self, options: Options, stage: StageSegments) -> None:
        super().__init__(options)
        self._stage = stage

    def partitions(self, start: Stored, end: Stored) -> list[InputPartition]:
        connection, _ = self._opened()
        begun = offsets.load(start, len(connection.backends))
        cursors = StoreCursors(connection).positions()
        # A query that is ahead of a cursor holds nothing of what lies between: the commit sees it by this.
        floors = {spot: later(position, begun.get(spot)) for spot, position in cursors.items()}
        return [InputPartition((each, floors)) for each in super().partitions(start, end)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        part, floors = partition.value
        return self._stage(read(self._options, part), floors)


def ingest_source(label: str, stage: StageSegments) -> type[HoldfastSource]:
    """The source of one driver, to be registered under a name.

    Where it stages travels to the tasks inside of it: as options, credentials would be shown by Spark.
    """

    class IngestSource(HoldfastSource):
        @classmethod
        def name(cls) -> str:
            return label

        def schema(self) -> str:
            return STAGED

        def streamReader(self, schema: StructType) -> IngestReader:  # noqa: N802 - Spark's name
            return IngestReader(Options.of(self.options), stage)

    return IngestSource
