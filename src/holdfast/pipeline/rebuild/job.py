"""Rebuild: a warehouse that was lost, filled again from the WAL and the archive, and proven by its counts.

What the WAL has confirmed is loaded from there. What it has cleaned up since is staged anew from the archive,
as batches of the WAL, and goes the way of every batch: validated, loaded, isolated where it is poison,
confirmed. So a rebuild may be cut short anywhere and run again, and changes nothing where nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from pyspark.sql import SparkSession

from holdfast import failpoints
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.archive.failure import explained
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.loader.rebuild import rebuild as reload_confirmed
from holdfast.pipeline.loader.results import Result
from holdfast.pipeline.rebuild.tasks import Restage, Stretch, stretches
from holdfast.pipeline.reconcile.bounds import Books, chain
from holdfast.pipeline.reconcile.job import reconcile
from holdfast.pipeline.reconcile.report import Report
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.stores.address import cloud_environment
from holdfast.pipeline.turns import outwait_the_dead, turn
from holdfast.pipeline.wal import Batch, BatchKey, Wal, segments
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.warehouse import open_warehouse

ABREAST = 16
"""Stretches that are staged at once: what is staged and not yet loaded is bounded by them."""
Tell = Callable[[str], None]


class Progress(NamedTuple):
    """Events that came from the archive, and up to where."""

    events: int
    last: str


class Rebuilt(NamedTuple):
    """What was loaded, and whether it adds up."""

    batches: int
    """From the WAL."""
    events: int
    """From the archive, read and staged anew."""
    reports: Sequence[Report]

    @property
    def equal(self) -> bool:
        return all(report.equal for report in self.reports)


def rebuild(
    spark: SparkSession, urls: Sequence[str], plan: IngestPlan, books: Sequence[Books], tell: Tell
) -> Rebuilt:
    """Fill the warehouse of a plan. `books` are those of all its channels, `urls` their stores.

    It takes the ingest's turn: `Busy` where an ingest is at work; one that died is outwaited.
    """
    with (
        Connection(urls) as connection,
        turn(connection, plan.lock_name, "ingest or rebuild", outwait_the_dead()) as still_mine,
    ):
        batches, events = _fill(spark, plan, books, tell, still_mine)
        return Rebuilt(batches, events, [reconcile(spark, each) for each in books])


def _fill(
    spark: SparkSession, plan: IngestPlan, books: Sequence[Books], tell: Tell, still_mine: Callable[[], None]
) -> tuple[int, int]:
    """Answers batches from the WAL, and events from the archive."""
    wal = Wal(open_store(plan.wal.path), plan.wal)
    warehouse = open_warehouse(plan.warehouse, plan.tables)
    failed = FailedEvents(wal, warehouse, plan.tables, plan.rules.problem)
    loader = Loader(wal, warehouse)
    try:
        batches, events = reload_confirmed(wal, warehouse, failed), 0
        loader.run_once(at_once=True)
        tell(f"{batches} batches from the WAL")
        for each in books:
            for done in _from_archive(spark, plan, each, loader):
                still_mine()
                events += done.events
                tell(f"{events:,} events from the archive; {each.channel} up to {done.last}")
        failed.reload()
        failed.mirror(everything=True)
    finally:
        warehouse.close()
    return batches, events


def _from_archive(spark: SparkSession, plan: IngestPlan, books: Books, loader: Loader) -> Iterator[Progress]:
    """Some stretches at a time."""
    if books.archive is None:
        return
    todo = list(_todo(loader.wal, books))
    restage = Restage(books.archive, plan.wal.path, cloud_environment(), plan.rules)
    for start in range(0, len(todo), ABREAST):
        some = todo[start : start + ABREAST]
        try:
            staged = spark.sparkContext.parallelize(some, len(some)).map(restage).collect()
        except Exception as error:
            raise explained(error) from error
        failpoints.hit("rebuild.after_stage")
        batches = [Batch(each.key, each.after, parts, loader.wal.clock()) for each, parts in staged if parts]
        yield Progress(sum(_load(loader, batch) for batch in batches), some[-1].key.last)


def _todo(wal: Wal, books: Books) -> Iterator[Stretch]:
    """Stretches of the archive that the WAL does not have, each without its failed records."""
    known = set(wal.journal.names("pending"))
    failed = [name.split("/") for name in wal.journal.names("failed")]
    positions = {
        (BatchKey.parse(batch)[:2], name.rpartition("@")[2]) for batch, name in failed if name != REST
    }
    whole = [BatchKey.parse(batch) for batch, name in failed if name == REST]
    for stretch in stretches(chain(books).manifests):
        if stretch.key.name in known:
            continue
        key = stretch.key
        own = {at for spot, at in positions if spot == key[:2] and key.first <= at <= key.last}
        for other in whole:
            if other[:2] == key[:2]:
                own |= _within(wal, other)
        yield stretch._replace(without=frozenset(own))


def _within(wal: Wal, key: BatchKey) -> set[str]:
    """The positions of a batch that failed as a whole."""
    rows = segments.read_all(wal.store, wal.batch(key.name).segments)
    return set(rows["position"].to_pylist())


def _load(loader: Loader, batch: Batch) -> int:
    """Through the WAL, like every batch."""
    standing = loader.wal.commit(batch)
    result = loader.load(standing, at_once=True)
    if result not in (Result.LOADED, Result.ALREADY):
        raise HoldfastError(f"batch {batch.name}: {result}; what is loaded stays, run it again")
    return standing.rows
