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
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import driver_lock, wait_for_stale_lock
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.failure import explained
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.loader.rebuild import rebuild as reload_confirmed
from holdfast.pipeline.loader.results import Result
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.rebuild.tasks import Restage, Stretch, stretches
from holdfast.pipeline.reconcile.bounds import Books, chain
from holdfast.pipeline.reconcile.job import reconcile
from holdfast.pipeline.reconcile.report import Report
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.stores.address import cloud_environment
from holdfast.pipeline.wal import Batch, Wal, segments
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.wal.rows import names as names_of
from holdfast.pipeline.warehouse import open_warehouse
from holdfast.pipeline.warehouse.spread import on_executors

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
        driver_lock(connection, plan.lock_name, "ingest or rebuild", wait_for_stale_lock()) as check_lock,
    ):
        batches, events = _fill(spark, plan, books, tell, check_lock)
        return Rebuilt(batches, events, [reconcile(spark, each) for each in books])


def _fill(
    spark: SparkSession, plan: IngestPlan, books: Sequence[Books], tell: Tell, check_lock: Callable[[], None]
) -> tuple[int, int]:
    """Answers batches from the WAL, and events from the archive."""
    wal = Wal(open_store(plan.wal.path), plan.wal)
    warehouse = open_warehouse(plan.warehouse, plan.tables, on_executors(spark))
    failed = FailedEvents(wal, warehouse, plan.tables, plan.rules.problem)
    loader = Loader(wal, warehouse)
    try:
        batches, events = reload_confirmed(wal, warehouse, failed), 0
        loader.run_once(at_once=True)
        tell(f"{batches} batches from the WAL")
        for each in books:
            for done in _from_archive(spark, plan, each, loader):
                check_lock()
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
        batches = [Batch((part,), segments, loader.wal.clock()) for part, segments in staged if segments]
        yield Progress(_load(loader, batches), some[-1].part.last)


def _todo(wal: Wal, books: Books) -> Iterator[Stretch]:
    """Stretches of the archive that the WAL does not have, each without its failed records."""
    known = {*wal.journal.names("pending"), *wal.journal.names("confirmed")}
    failed = _failed(wal, books.channel)
    for stretch in stretches(chain(books).manifests):
        part = stretch.part
        if Batch((part,), (), wal.clock()).name not in known:
            own = {at for spot, at in failed if part.holds(spot, at)}
            yield stretch._replace(without=frozenset(own))


def _failed(wal: Wal, channel: str) -> set[tuple[Spot, str]]:
    """The places of a channel's records that have failed, by themselves or with their batches."""
    found: set[tuple[Spot, str]] = set()
    for batch, name in (each.split("/") for each in wal.journal.names("failed")):
        if name == REST and wal.is_lost(batch):
            names = []
        elif name == REST:
            rows = segments.read_all(wal.store, wal.batch(batch).segments)
            names = names_of(rows).to_pylist()
        else:
            names = [name]
        for its, partition, position in (each.split("@") for each in names):
            if its == channel:
                found.add((Spot(int(partition), its), position))
    return found


def _load(loader: Loader, batches: Sequence[Batch]) -> int:
    """Through the WAL, like every batch."""
    results = loader.load([loader.wal.commit(batch) for batch in batches], at_once=True)
    for batch, result in results:
        if result not in (Result.LOADED, Result.ALREADY):
            raise HoldfastError(f"batch {batch.name}: {result}; what is loaded stays, run it again")
    return sum(batch.rows for batch, _ in results)
