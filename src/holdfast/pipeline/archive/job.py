"""The job: one policy as a streaming query. Its tasks write objects, the driver commits."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.correlation import correlated
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.archive.checkpoint import discard_if_at_odds
from holdfast.pipeline.archive.commit import Committer
from holdfast.pipeline.archive.leftovers import Leftovers
from holdfast.pipeline.archive.manifest import Manifest, Written
from holdfast.pipeline.archive.metrics import Metrics
from holdfast.pipeline.archive.pace import archive_source
from holdfast.pipeline.archive.policy import ArchivePolicy, refuse_rivals
from holdfast.pipeline.archive.tasks import WriteObjects
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.stores import open_store, probe
from holdfast.pipeline.stores.address import cloud_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

ROWS_PER_TASK = 50_000


@dataclass(frozen=True)
class Surroundings:
    """What the jobs of one archiver share."""

    spark: SparkSession
    connection: Connection
    urls: Sequence[str]
    policies: Sequence[ArchivePolicy]
    checkpoints: Path
    metrics: Metrics
    reporter: Reporter
    still_mine: Callable[[], None]
    """Raises where the archiver's lock is lost."""


class Job:
    """Archives the channels of one policy."""

    def __init__(self, policy: ArchivePolicy, around: Surroundings) -> None:
        self._policy, self._around = policy, around
        self._store = open_store(policy.destination)
        self._committer = Committer(around.connection.backends, self._store, policy)
        identity = f"{policy.consumer}\n{policy.stream}\n{self._store.url}"
        self.name = f"archive-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self._checkpoint = around.checkpoints / self.name
        self._leftovers: Leftovers | None = None
        self._busy = threading.Lock()
        self._open = False
        self.failure: BaseException | None = None

    def prepare(self) -> None:
        """Look at the destination, finish what another driver has left, and agree on where to start."""
        run = self._around.connection.run
        for finding in probe(self._store):
            level = logging.INFO if finding.level == "ok" else logging.WARNING
            log.log(level, "%s: %s", finding.subject, finding.message)
        run(self._committer.attach())
        self._around.metrics.committed(run(self._committer.recover()))
        cursors = self._cursors()
        self._leftovers = Leftovers(self._store, cursors)
        discard_if_at_odds(self._checkpoint, cursors)

    def start(self, *, once: bool) -> StreamingQuery:
        """Start the query: over all that is there, or until it is stopped."""
        self.failure, self._open = None, True
        policy, spark = self._policy, self._around.spark
        write = WriteObjects(policy.destination, cloud_environment(), policy.batch_size)
        spark.dataSource.register(archive_source(self.name, write, policy.batch_timeout))
        stream = spark.readStream.format(self.name).options(
            url=",".join(self._around.urls),
            channel=policy.stream,
            consumer=policy.consumer,
            failOnMissingChannel=False,
            maxRowsPerBatch=policy.max_rows,
            rowsPerPartition=policy.batch_size * max(1, ROWS_PER_TASK // policy.batch_size),
        )
        writer = stream.load().writeStream.queryName(self.name).foreachBatch(self._archive)
        writer = writer.option("checkpointLocation", self._checkpoint.resolve().as_uri())
        return (writer.trigger(availableNow=True) if once else writer).start()

    def stop(self, query: StreamingQuery) -> None:
        """End the query between two batches."""
        with self._busy:
            self._open = False
        query.stop()

    def _archive(self, rows: DataFrame, number: int) -> None:
        try:
            with self._busy, correlated(batch=f"{self.name}/{number}"):
                if not self._open:
                    raise HoldfastError("told to stop")
                self._commit(rows, number)
        except BaseException as error:
            self.failure = error
            # Spark gets a short one: it searches the text of errors in a way that long ones do not survive.
            raise RuntimeError(f"{type(error).__name__}: see the archiver's log") from None

    def _commit(self, rows: DataFrame, number: int) -> None:
        began = time.monotonic()
        self._around.still_mine()
        self._cursors()  # raises where two policies have come to select the same new channel
        described = rows.collect()
        written = [Written(*row[:-1]) for row in described]
        cursors = {each.spot: row["after"] for each, row in zip(written, described, strict=True)}
        self._around.still_mine()
        manifests = self._around.connection.run(self._committer.commit(cursors, written))
        self._around.metrics.committed(manifests, (self.name, number))
        self._around.reporter.batch(_written(manifests), time.monotonic() - began)
        if self._leftovers is not None:
            for name in self._leftovers.remove(manifests):
                log.info("removed %s, which was never committed", name)

    def _cursors(self) -> dict[Spot, str | None]:
        cursors = self._around.connection.run(self._committer.cursors())
        refuse_rivals(self._around.policies, (spot.channel for spot in cursors))
        return cursors


def _written(manifests: Sequence[Manifest]) -> dict[str, Amount]:
    """By channel: a channel has a manifest for each store that holds some of it."""
    found: dict[str, Amount] = {}
    for manifest in manifests:
        rows, size = found.get(manifest.spot.channel, (0, 0))
        size += sum(each.bytes for each in manifest.objects)
        found[manifest.spot.channel] = Amount(rows + manifest.rows, size)
    return found
