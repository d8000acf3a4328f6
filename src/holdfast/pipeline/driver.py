"""The stream driver: one of a kind at a time, under a lock. Tasks write what they read; the driver commits.

A job says what is to be done while the lock is held, and each of its sinks where one query's rows go.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from holdfast.correlation import correlated
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import FIRST_DELAY, LOOK, Busy, again, driver_lock, wait_for_stale_lock
from holdfast.pipeline.offsets import ChannelPartition, load
from holdfast.pipeline.reports import Reporter
from holdfast.pipeline.session import explain_failure
from holdfast.pipeline.source import HoldfastSource
from holdfast.pipeline.stores import ObjectStore, probe

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

WATCH = 1.0
"""Seconds between two checks of running queries: each is a call to Java."""
_MAX_STORES = 10_000
"""More than there can be: offsets of any store are read here."""

Ends = dict[ChannelPartition, str]


@dataclass(frozen=True)
class Context:
    """What a job gets while it has the lock."""

    connection: Connection
    check_lock: Callable[[], None]
    """Raises where the lock is lost."""
    stop: threading.Event


class Sink(Protocol):
    """Where the rows of one query go."""

    name: str
    """Of the query and its checkpoint."""
    every: timedelta
    """How often to look for new events."""

    def prepare(self) -> Mapping[ChannelPartition, str | None]:
        """Finish what another driver has left undone. Returns the cursors to start from."""

    def source(self, label: str) -> type[HoldfastSource]:
        """The source, under this name: its tasks write, and their rows describe what they wrote."""

    def options(self) -> Mapping[str, Any]:
        """Those of the source, besides the stores."""

    def commit(self, rows: DataFrame, number: int) -> None:
        """Have the tasks write (by `collect`), make it durable, move the cursors."""


class DriverJob(Protocol):
    """What a driver is for."""

    kind: str
    """`ingest`, `archiver`: in messages."""
    lock_name: str
    reporter: Reporter
    flushes: bool
    """Whether waiting events are written when it is told to stop."""

    def open(self, context: Context) -> AbstractContextManager[Sequence[Sink]]:
        """The sinks, not prepared yet, for as long as the lock is held."""

    def beside(self, *, once: bool) -> AbstractContextManager[None]:
        """What runs beside the queries."""

    def look(self, connection: Connection) -> None:
        """Called now and then while the queries run."""

    def progress(self) -> object:
        """A value that changes with every commit."""

    def failed(self) -> None:
        """Called after a failure, before the next try."""


class Driver:
    """One driver of a job."""

    def __init__(self, spark: SparkSession, urls: Sequence[str], checkpoints: Path, job: DriverJob) -> None:
        self._spark, self._urls, self._checkpoints, self._job = spark, urls, checkpoints, job

    def run_once(self) -> None:
        """Take all that is there now. Raises `Busy` where another driver is at work.

        The lock of one that died is waited for.
        """
        with (
            self._session(wait_for_stale_lock(), threading.Event()) as (context, queries),
            self._job.beside(once=True),
        ):
            self._drain(context, queries)

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop. Waits while another driver is at work; tries again after a failure."""
        delay = FIRST_DELAY
        while not stop.is_set():
            before = self._job.progress()
            try:
                with self._session(lambda: not stop.wait(LOOK), stop) as (context, queries):
                    with self._job.beside(once=False):
                        self._watch(context, queries)
                    if self._job.flushes:
                        self._drain(context, queries)
            except Busy:
                return  # told to stop while it waited
            except HoldfastError as error:
                if stop.is_set():
                    raise
                self._job.failed()
                delay = again(stop, error, delay, progressed=self._job.progress() != before)

    @contextlib.contextmanager
    def _session(
        self, wait: Callable[[], bool], stop: threading.Event
    ) -> Iterator[tuple[Context, list[Query]]]:
        """Prepared queries while this driver has the lock; `wait` returns whether to ask for it again."""
        job = self._job
        with (
            Connection(self._urls) as connection,
            driver_lock(connection, job.lock_name, job.kind, wait) as check_lock,
            job.reporter.at_work(connection),
        ):
            context = Context(connection, check_lock, stop)
            job.look(connection)  # also while the destination cannot be reached
            with job.open(context) as sinks:
                queries = [
                    Query(self._spark, self._urls, self._checkpoints, job.kind, sink) for sink in sinks
                ]
                for query in queries:
                    query.prepare()
                yield context, queries

    def _watch(self, context: Context, queries: Sequence[Query]) -> None:
        """Let the queries run until told to stop or until one fails."""
        try:
            for query in queries:
                query.start(once=False)
            while not context.stop.wait(WATCH):
                self._job.look(context.connection)
                self._job.reporter.look(context.connection)
                for query in queries:
                    query.check()
        finally:
            for query in queries:
                query.stop()

    def _drain(self, context: Context, queries: Sequence[Query]) -> None:
        for query in queries:
            query.finish(lambda: self._job.reporter.look(context.connection))


class Query:
    """One sink as a streaming query. It is stopped between two batches: one that is interrupted would have to
    be done again."""

    def __init__(
        self, spark: SparkSession, urls: Sequence[str], checkpoints: Path, kind: str, sink: Sink
    ) -> None:
        self._spark, self._urls, self._kind, self.sink = spark, urls, kind, sink
        self._checkpoint = checkpoints / sink.name
        self._busy, self._open = threading.Lock(), False
        self._failure: BaseException | None = None
        self._query: StreamingQuery | None = None

    def prepare(self) -> None:
        """Agree with the cursors on where to start."""
        discard_stale_checkpoint(self._checkpoint, self.sink.prepare())

    def start(self, *, once: bool) -> StreamingQuery:
        """Start: over all that is there, or until it is stopped."""
        self._failure, self._open = None, True
        sink, label = self.sink, f"holdfast-{self.sink.name}"
        self._spark.dataSource.register(sink.source(label))
        options = {"url": ",".join(self._urls), "failOnMissingChannel": False, **sink.options()}
        stream = self._spark.readStream.format(label).options(**options).load()
        writer = stream.writeStream.queryName(sink.name).foreachBatch(self._batch)
        writer = writer.option("checkpointLocation", self._checkpoint.resolve().as_uri())
        if once:
            writer = writer.trigger(availableNow=True)
        else:
            every = max(1, round(sink.every.total_seconds() * 1000))
            writer = writer.trigger(processingTime=f"{every} milliseconds")
        self._query = writer.start()
        return self._query

    def check(self) -> None:
        """Raise the cause where it has ended."""
        if self._query is not None and not self._query.isActive:
            raise explain_failure(self._failure or self._query.exception())

    def finish(self, look: Callable[[], None]) -> None:
        """Run over all that is there now, and wait for the end."""
        query = self.start(once=True)
        with contextlib.suppress(Exception):  # explained below
            while not query.awaitTermination(1):
                look()
        if (failure := self._failure or query.exception()) is not None:
            raise explain_failure(failure)

    def stop(self) -> None:
        """End between two batches."""
        with self._busy:
            self._open = False
        if self._query is not None:
            self._query.stop()

    def _batch(self, rows: DataFrame, number: int) -> None:
        try:
            with self._busy, correlated(batch=f"{self.sink.name}/{number}"):
                if not self._open:
                    raise HoldfastError("told to stop")
                self.sink.commit(rows, number)
        except BaseException as error:
            self._failure = error
            # Spark gets a short one: it searches the text of errors in a way that long ones do not survive.
            raise RuntimeError(f"{type(error).__name__}: see the {self._kind}'s log") from None


def log_probe(store: ObjectStore) -> None:
    """Log whether a destination honours conditional puts."""
    for finding in probe(store):
        level = logging.INFO if finding.level == "ok" else logging.WARNING
        log.log(level, "%s: %s", finding.subject, finding.message)


def discard_stale_checkpoint(folder: Path, cursors: Mapping[ChannelPartition, str | None]) -> bool:
    """Remove Spark's checkpoint where it contradicts the cursors, which decide; returns whether it did.

    A checkpoint whose last batch ends before a cursor was overtaken by another driver: its batches are
    committed, and their events may be trimmed. One that takes a batch for done which ends beyond a cursor
    would skip what lies between. In both cases the query starts afresh at the cursors. Otherwise it repeats,
    exactly as it was, the batch that was under way.
    """
    if not folder.exists() or checkpoint_agrees(_ends(folder, "offsets"), _ends(folder, "commits"), cursors):
        return False
    log.warning("the checkpoint %s does not agree with the cursors: starting at the cursors", folder)
    shutil.rmtree(folder)
    return True


def checkpoint_agrees(
    planned: Ends | None, done: Ends | None, cursors: Mapping[ChannelPartition, str | None]
) -> bool:
    """Whether every cursor is between what is done and what is planned. None stands for unreadable."""
    if planned is None or done is None:
        return False
    behind = any((cursors.get(spot) or "") > end for spot, end in planned.items())
    ahead = any((cursors.get(spot) or "") < end for spot, end in done.items())
    return not behind and not ahead


def _ends(folder: Path, log_name: str) -> Ends | None:
    """Where the last batch ends that Spark has planned (`offsets`) or done (`commits`)."""
    numbers = [int(path.name) for path in (folder / log_name).glob("*") if path.name.isdigit()]
    if not numbers:
        return {}
    try:
        # A line for the version, one for Spark's own notes, one for the only source.
        stored = orjson.loads((folder / "offsets" / str(max(numbers))).read_bytes().splitlines()[2])
        return {spot: end or "" for spot, end in load(stored, _MAX_STORES).items()}
    except (OSError, ValueError, IndexError):
        return None
