"""The archiver: a stream driver with a query for each policy, and a watch over the lag."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.errors import InvalidInput
from holdfast.pipeline.archive.compaction import compactions
from holdfast.pipeline.archive.lag import LagWatch
from holdfast.pipeline.archive.metrics import Metrics
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.sink import ArchiveSink
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver import Context, Driver, Sink
from holdfast.pipeline.reports import Reporter
from holdfast.pipeline.upkeep import Upkeep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Archiver:
    """Archives the channels of all policies on the given stores."""

    kind, flushes = "archiver", True

    def __init__(
        self,
        spark: SparkSession,
        urls: Sequence[str],
        policies: Sequence[ArchivePolicy],
        checkpoints: Path,
    ) -> None:
        if len({policy.lock_name for policy in policies}) != 1:
            raise InvalidInput("an archiver needs policies of one consumer and namespace; start one for each")
        self._policies = policies
        self.lock_name = policies[0].lock_name
        self.metrics = Metrics()
        self._lag = LagWatch(policies, self.metrics)
        self.reporter = Reporter(policies[0].namespace, policies[0].report_name)
        self._upkeep: Upkeep | None = None
        self._driver = Driver(spark, urls, checkpoints, self)

    def run_once(self) -> Metrics:
        """Archive all that is there now. `Busy` where another one is at work; one that died is outwaited."""
        self._driver.run_once()
        return self.metrics

    def run(self, stop: threading.Event) -> Metrics:
        """Archive until told to stop, then flush what has not filled an object yet.

        While another archiver is at work this one waits. A failure moves nothing and is tried again.
        """
        self._driver.run(stop)
        return self.metrics

    # what its driver asks

    @contextlib.contextmanager
    def open(self, context: Context) -> Iterator[Sequence[Sink]]:
        """See the contract."""
        settings = self._policies[0].compaction
        places = [policy.destination for policy in self._policies]
        archives = compactions(places, settings, context.check_lock)
        self._upkeep = Upkeep(lambda: archives, settings, context.check_lock)
        yield [
            ArchiveSink(policy, self._policies, context, self.metrics, self.reporter)
            for policy in self._policies
        ]

    @contextlib.contextmanager
    def beside(self, *, once: bool) -> Iterator[None]:
        """See the contract. Compaction."""
        if self._upkeep is None:
            raise RuntimeError("compaction runs only while the lock is held")
        with self._upkeep.beside():
            yield

    def look(self, connection: Connection) -> None:
        """See the contract."""
        self._lag.look(connection)

    def progress(self) -> object:
        """See the contract."""
        return self.metrics.last_commit

    def failed(self) -> None:
        """See the contract."""
        self.metrics.failures += 1
