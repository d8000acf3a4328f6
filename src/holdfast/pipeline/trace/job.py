"""Trace: one event id, its whole life, from publish to warehouse or dead letter.

The warehouse knows most events and where they stood in the log, and so do the jobs of worker consumers; from
there everything else is looked up at its place. What neither knows is searched for, by a Spark job over the
log, the archive and the WAL.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failure import explained
from holdfast.pipeline.reconcile.bounds import Books, chain
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.trace.places import Place, archived, in_wal, published
from holdfast.pipeline.trace.steps import Life, Step, in_order, job_steps, row_step
from holdfast.pipeline.wal.records import Failure
from holdfast.pipeline.warehouse import Standing, Warehouse, open_warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

BooksOf = Callable[[str], Books]
"""Where the books of a channel are kept."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is looked for, and how hard."""

    id: str
    channel: str | None = None
    """None: in all channels."""
    source: str | None = None
    """None: from any source."""
    scan: bool = False
    """Also search where the warehouse knows the event: it may have been published more than once."""


class Tracer:
    """Answers where an event went. `spark` starts a session when one is needed."""

    def __init__(self, urls: Sequence[str], books: BooksOf, spark: Callable[[], SparkSession]) -> None:
        self._urls, self._books, self._spark = urls, books, spark

    def trace(self, question: Question) -> list[Life]:
        """Every event of that id; `NotFound` where there is none."""
        with Connection(self._urls) as connection:
            channels = [question.channel] if question.channel else _channels(connection)
            books = [self._books(channel) for channel in channels]
            rows = list(_rows(books, question.id))
            found = {Place(row.channel, row.source, row.partition, row.position) for row in rows}
            found |= set(_worked_on(connection, channels, question))
            found |= set(_rivals(books, found, question))
            if question.scan or not found:
                found |= set(self._search(books, question.id))
            wanted = {each for each in found if question.source in (None, each.source)}
            events = sorted({(each.channel, each.source) for each in wanted})
            if not events:
                raise NotFound(
                    f"no trace of the event {question.id!r} in {', '.join(channels) or 'any channel'}"
                )
            return [
                self._life(connection, question.id, channel, source, wanted, rows)
                for channel, source in events
            ]

    def _life(
        self,
        connection: Connection,
        event_id: str,
        channel: str,
        source: str,
        found: Iterable[Place],
        rows: Iterable[Standing],
    ) -> Life:
        books, steps = self._books(channel), list[Step]()
        wal = books.wal()
        manifests = list(chain(books).manifests)
        for place in sorted(each for each in found if (each.channel, each.source) == (channel, source)):
            steps.append(connection.run(published(connection.backends[place.partition], place)))
            if books.archive is not None:
                steps += archived(open_store(books.archive), manifests, place)
            if wal is not None:
                steps += in_wal(wal, place)
        for backend in connection.backends:
            for job in connection.run(backend.find_jobs(channel, source, event_id)):
                steps += job_steps(job)
        for row in rows:
            if books.plan is not None and (row.channel, row.source) == (channel, source):
                steps.append(row_step(row, books.plan.tables.of(channel).name))
        return Life(channel, source, event_id, in_order(steps))

    def _search(self, books: Sequence[Books], event_id: str) -> Iterator[Place]:
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        from holdfast.pipeline.reconcile.sides import sides

        with ExitStack() as stack:
            spark = self._spark()

            def matching(each: Books) -> DataFrame:
                records = stack.enter_context(sides(spark, each, chain(each), None, None))
                return records.where(F.col("id") == event_id).withColumn("channel", F.lit(each.channel))

            frames = [matching(each) for each in books]
            if not frames:
                return
            try:
                everything = reduce(lambda one, other: one.unionByName(other), frames)
                hits = everything.select(*Place._fields).distinct().collect()
            except Exception as error:
                raise explained(error) from error
        yield from (Place(*row) for row in hits)


def _channels(connection: Connection) -> list[str]:
    found = [connection.run(backend.channels()) for backend in connection.backends]
    return sorted(set().union(*found))


def _rows(books: Sequence[Books], event_id: str) -> Iterator[Standing]:
    """What the warehouses know, each asked once."""
    for url in {each.plan.warehouse for each in books if each.plan is not None}:
        plans = [each.plan for each in books if each.plan is not None and each.plan.warehouse == url]
        channels = [each.channel for each in books if each.plan is not None and each.plan.warehouse == url]
        warehouse: Warehouse = open_warehouse(url, plans[0].tables)
        try:
            yield from warehouse.find(event_id, channels)
        except Unavailable as error:
            log.warning("%s; looking elsewhere", error)
        finally:
            warehouse.close()


def _worked_on(connection: Connection, channels: Sequence[str], question: Question) -> Iterator[Place]:
    """Where the jobs of the event say that it stands."""
    source = question.source or DEFAULT_SOURCE
    for channel in channels:
        for partition, backend in enumerate(connection.backends):
            for job in connection.run(backend.find_jobs(channel, source, question.id)):
                yield Place(channel, source, partition, job.position)


def _rivals(books: Sequence[Books], found: set[Place], question: Question) -> Iterator[Place]:
    """Records of the same events that failed by themselves. Those of the channel are read, one by one."""
    for each in books:
        wal = each.wal()
        sources = {place.source for place in found if place.channel == each.channel}
        sources |= {question.source or DEFAULT_SOURCE}
        for name in () if wal is None else wal.journal.names("failed"):
            batch, _, record = name.partition("/")
            if wal is not None and record.startswith(f"{each.channel}@"):
                match wal.read_failure(batch, record):
                    case Failure() as one if one.id == question.id and one.source in sources:
                        yield Place(one.channel, one.source, one.partition, one.position)
