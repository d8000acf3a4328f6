"""What a streaming query delivered, batch by batch, exactly as its sink saw it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

PATIENCE = 90.0


class Batches:
    """Streaming queries from one checkpoint into memory. A batch that is replayed replaces the former."""

    def __init__(self, spark: SparkSession, checkpoint: Path, **options: object) -> None:
        self._spark, self._checkpoint, self._options = spark, checkpoint, options
        self.seen: dict[int, list[Row]] = {}

    def run(self, **options: object) -> list[list[Row]]:
        """Read all that is there; answers the batches of this run that have rows."""
        before = dict(self.seen)
        query = self._start(options, availableNow=True)
        assert query.awaitTermination(PATIENCE), "it did not stop by itself"
        return [rows for number, rows in self.seen.items() if rows and before.get(number) is not rows]

    def start(self, **options: object) -> StreamingQuery:
        """A query that runs until it is stopped."""
        return self._start(options, processingTime="50 milliseconds")

    def forget_last_commit(self) -> int:
        """Let the last batch look planned and not done, as after a crash; answers its number."""
        commits = self._checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)
        return last

    @property
    def ids(self) -> list[str]:
        """The events of all batches so far, in the order of their arrival."""
        return [row.id for number in sorted(self.seen) for row in self.seen[number]]

    def _start(self, options: dict[str, object], **trigger: object) -> StreamingQuery:
        def keep(rows: DataFrame, number: int) -> None:
            self.seen[number] = rows.collect()

        stream = self._spark.readStream.format("holdfast").options(**self._options | options).load()
        writer = stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(self._checkpoint))
        return writer.trigger(**trigger).start()


def wait_for(query: StreamingQuery, condition: Callable[[], object]) -> None:
    """Wait until it holds, or until the query fails."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if error := query.exception():
            raise error
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
