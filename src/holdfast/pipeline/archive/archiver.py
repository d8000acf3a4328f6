"""The archiver: one at a time under a lock, a query for each policy, retries, lag, a graceful end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.pipeline.archive.failure import explained
from holdfast.pipeline.archive.job import Job, Surroundings
from holdfast.pipeline.archive.lag import LagWatch
from holdfast.pipeline.archive.metrics import Listener, Metrics
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.reports import Reporter
from holdfast.pipeline.turns import FIRST_DELAY, LOOK, Busy, again, outwait_the_dead, turn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Archiver:
    """Archives the channels of all policies on the given stores."""

    def __init__(
        self,
        spark: SparkSession,
        urls: Sequence[str],
        policies: Sequence[ArchivePolicy],
        checkpoints: Path,
    ) -> None:
        if len({policy.lock_name for policy in policies}) != 1:
            raise InvalidInput("an archiver needs policies of one consumer and namespace; start one for each")
        self._spark, self._urls, self._policies = spark, urls, policies
        self._checkpoints = checkpoints
        self.metrics = Metrics()
        self._lag = LagWatch(policies, self.metrics)
        self._reporter = Reporter(policies[0].namespace, policies[0].report_name)

    def run_once(self) -> Metrics:
        """Archive all that is there now. `Busy` where another one is at work; one that died is outwaited."""
        with self._work(outwait_the_dead()) as (connection, jobs):
            self._drain(connection, jobs)
        return self.metrics

    def run(self, stop: threading.Event) -> Metrics:
        """Archive until told to stop, then flush what has not filled an object yet.

        While another archiver is at work this one waits. A failure moves nothing and is tried again.
        """
        delay = FIRST_DELAY
        while not stop.is_set():
            before = self.metrics.last_commit
            try:
                with self._work(lambda: not stop.wait(LOOK)) as (connection, jobs):
                    self._watch(connection, jobs, stop)
                    self._drain(connection, jobs)
            except Busy:
                return self.metrics  # told to stop while it waited
            except HoldfastError as error:
                if stop.is_set():
                    raise
                self.metrics.failures += 1
                delay = again(stop, error, delay, progressed=self.metrics.last_commit != before)
        return self.metrics

    def _watch(self, connection: Connection, jobs: Sequence[Job], stop: threading.Event) -> None:
        """Let the queries run until told to stop or until one fails."""
        listener = Listener(self.metrics, {job.name for job in jobs})
        self._spark.streams.addListener(listener)
        queries = [(job, job.start(once=False)) for job in jobs]
        try:
            while not stop.wait(LOOK):
                self._lag.look(connection)
                self._reporter.look(connection)
                for job, query in queries:
                    if not query.isActive:
                        raise explained(job.failure or query.exception())
        finally:
            for job, query in queries:
                job.stop(query)
            self._spark.streams.removeListener(listener)

    def _drain(self, connection: Connection, jobs: Sequence[Job]) -> None:
        for job in jobs:
            query = job.start(once=True)
            with contextlib.suppress(Exception):  # said below, in words
                while not query.awaitTermination(1):
                    self._reporter.look(connection)
            for progress in query.recentProgress:
                self.metrics.progressed(progress)
            if (failure := job.failure or query.exception()) is not None:
                raise explained(failure)

    @contextlib.contextmanager
    def _work(self, wait: Callable[[], bool]) -> Iterator[tuple[Connection, list[Job]]]:
        """The jobs, prepared, while this archiver has the lock; `wait` says whether to ask for it again."""
        name = self._policies[0].lock_name
        with (
            Connection(self._urls) as connection,
            turn(connection, name, "archiver", wait) as still_mine,
            self._reporter.at_work(connection),
        ):
            around = Surroundings(
                self._spark,
                connection,
                self._urls,
                self._policies,
                self._checkpoints,
                self.metrics,
                self._reporter,
                still_mine,
            )
            self._lag.look(connection)  # also while the destination cannot be reached
            jobs = [Job(policy, around) for policy in self._policies]
            for job in jobs:
                job.prepare()
            yield connection, jobs
