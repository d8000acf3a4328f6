"""The data source `holdfast`: channels as rows, in batch and as a stream.

    spark.readStream.format("holdfast").option("url", …).option("channel", "gbe.events.>").load()

Spark finds it through the module `pyspark_holdfast`; docs/spark.md says what its options mean.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from holdfast.pipeline.connection import Connection
from holdfast.pipeline.options import Options
from holdfast.pipeline.planner import Planner
from holdfast.pipeline.reader import BatchReader, StreamReader, WritingReader

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
