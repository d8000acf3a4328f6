"""Rebuild: a lost warehouse, filled again from the WAL and the archive, and proven by its counts.

What the WAL has confirmed is loaded from there. What it has cleaned up since is staged anew from the archive,
as batches of the WAL, and goes the way of every batch: validated, loaded, isolated where it is poison,
confirmed. So a rebuild may be cut short anywhere and run again, and changes nothing where nothing is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast import failpoints
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.declared import DeclaredSchemas
from holdfast.pipeline.driver_lock import driver_lock, wait_for_stale_lock
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.loader.loader import Loader, reload_confirmed
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.reconcile.inputs import Inputs, read_chain
from holdfast.pipeline.reconcile.job import reconcile
from holdfast.pipeline.reconcile.report import ReconcileReport
from holdfast.pipeline.restage import ArchiveRange, Restage, archive_ranges
from holdfast.pipeline.session import explain_failure
from holdfast.pipeline.stores import cloud_environment, open_store
from holdfast.pipeline.wal import Wal, WalBatch, segments
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.wal.segments import row_names
from holdfast.pipeline.warehouse import open_warehouse
from holdfast.pipeline.warehouse.loads import run_on_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARALLEL = 16
"""Ranges that are staged at once: what is staged and not yet loaded is bounded by them."""


class RebuildProgress(NamedTuple):
    """Events that came from the archive, and up to where."""

    events: int
    last: str


class RebuildResult(NamedTuple):
    """What was loaded, and whether it is complete."""

    batches: int
    """From the WAL."""
    events: int
    """From the archive, read and staged anew."""
    reports: Sequence[ReconcileReport]

    @property
    def equal(self) -> bool:
        return all(report.equal for report in self.reports)


def rebuild(
    spark: SparkSession,
    urls: Sequence[str],
    plan: IngestPlan,
    inputs: Sequence[Inputs],
    report: Callable[[str], None],
) -> RebuildResult:
    """Fill the warehouse of a plan. `inputs` are those of all its channels, `urls` their stores.

    It takes the ingest's lock. Raises `Busy` where an ingest is at work, after waiting for a dead one's lock.
    """
    with (
        Connection(urls) as connection,
        driver_lock(connection, plan.lock_name, "ingest or rebuild", wait_for_stale_lock()) as check_lock,
    ):
        DeclaredSchemas(connection, plan.namespace, plan.tables).refresh(each.channel for each in inputs)
        batches, events = _fill(spark, plan, inputs, report, check_lock)
        return RebuildResult(batches, events, [reconcile(spark, each) for each in inputs])


def _fill(
    spark: SparkSession,
    plan: IngestPlan,
    inputs: Sequence[Inputs],
    report: Callable[[str], None],
    check_lock: Callable[[], None],
) -> tuple[int, int]:
    """Returns the counts of batches from the WAL and of events from the archive."""
    wal = Wal(open_store(plan.wal.path), plan.wal)
    warehouse = open_warehouse(plan.warehouse, plan.tables, run_on_executors(spark))
    failed = FailedEvents(wal, warehouse, plan.tables, plan.rules.problem)
    loader = Loader(wal, warehouse)
    try:
        batches, events = reload_confirmed(wal, warehouse, failed), 0
        loader.run_once(at_once=True)
        report(f"{batches} batches from the WAL")
        for each in inputs:
            for done in _from_archive(spark, plan, each, loader):
                check_lock()
                events += done.events
                report(f"{events:,} events from the archive; {each.channel} up to {done.last}")
        failed.reload()
        failed.mirror(everything=True)
    finally:
        warehouse.close()
    return batches, events


def _from_archive(
    spark: SparkSession, plan: IngestPlan, inputs: Inputs, loader: Loader
) -> Iterator[RebuildProgress]:
    """Some ranges at a time."""
    if inputs.archive is None:
        return
    todo = list(_todo(loader.wal, inputs))
    restage = Restage(inputs.archive, plan.wal.path, cloud_environment(), plan.rules)
    for start in range(0, len(todo), PARALLEL):
        some = todo[start : start + PARALLEL]
        try:
            staged = spark.sparkContext.parallelize(some, len(some)).map(restage).collect()
        except Exception as error:
            raise explain_failure(error) from error
        failpoints.hit("rebuild.after_stage")
        batches = [WalBatch((part,), segments, loader.wal.clock()) for part, segments in staged if segments]
        yield RebuildProgress(_load(loader, batches), some[-1].part.last)


def _todo(wal: Wal, inputs: Inputs) -> Iterator[ArchiveRange]:
    """Ranges of the archive that the WAL does not have, each without its failed records."""
    known = {*wal.records.names("pending"), *wal.records.names("confirmed")}
    failed = _failed(wal, inputs.channel)
    for extent in archive_ranges(read_chain(inputs).manifests):
        part = extent.part
        if WalBatch((part,), (), wal.clock()).name not in known:
            own = {at for spot, at in failed if part.holds(spot, at)}
            yield extent._replace(without=frozenset(own))


def _failed(wal: Wal, channel: str) -> set[tuple[ChannelPartition, str]]:
    """The places of a channel's records that have failed, by themselves or with their batches."""
    found: set[tuple[ChannelPartition, str]] = set()
    for batch, name in (each.split("/") for each in wal.records.names("failed")):
        if name == REST and wal.is_lost(batch):
            names = []
        elif name == REST:
            rows = segments.read_all(wal.store, wal.batch(batch).segments)
            names = row_names(rows).to_pylist()
        else:
            names = [name]
        for its, partition, position in (each.split("@") for each in names):
            if its == channel:
                found.add((ChannelPartition(int(partition), its), position))
    return found


def _load(loader: Loader, batches: Sequence[WalBatch]) -> int:
    """Through the WAL, like every batch."""
    results = loader.load([loader.wal.commit(batch) for batch in batches], at_once=True)
    for batch, result in results:
        if result not in (Result.LOADED, Result.ALREADY):
            raise HoldfastError(f"batch {batch.name}: {result}; what is loaded stays, run it again")
    return sum(batch.rows for batch, _ in results)
