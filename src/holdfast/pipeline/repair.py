"""Repair of a warehouse: exactly what reconcile names is put right, from what is still there.

A position that is wrong is cleared, and the event that was published there is put in again: what is missing
comes back, what was changed is restored, what is there twice is there once, and what was never published is
removed. It is a replacement and no load, so the ledger does not keep it out, and a repeat changes nothing.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, DataLost, HoldfastError, NotFound, Terminal
from holdfast.pipeline.archive.lines import log_rows
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import driver_lock, wait_for_stale_lock
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.staging import read_range
from holdfast.pipeline.ingest.validation import ValidationRules, to_segment_rows
from holdfast.pipeline.loader.decisions import isolate
from holdfast.pipeline.offsets import ChannelPartition, before
from holdfast.pipeline.reconcile.inputs import Inputs, read_chain
from holdfast.pipeline.reconcile.job import find_wrong
from holdfast.pipeline.reconcile.report import ReconcileReport, WrongPosition
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import BatchPart, Wal, WalBatch, segments
from holdfast.pipeline.wal.segments import rows_at, rows_without
from holdfast.pipeline.warehouse import Warehouse, open_warehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

ROUND = 10_000
"""Positions that are repaired between two comparisons."""
AT_ONCE = 1000
"""Positions that are read from the log, or only cleared, for one transaction."""


@dataclass(slots=True)
class RepairResult:
    """What was done, or would be, and what reconcile says of it."""

    positions: int = 0
    removed: int = 0
    """Rows that were taken out, those that were put in again among them."""
    restored: Counter[str] = field(default_factory=Counter)
    """Rows that were put in, by where they came from: `wal`, `log`, `archive`."""
    lost: int = 0
    """Events that should be there and that nothing has any more."""
    refused: dict[str, str] = field(default_factory=dict)
    """Events that the warehouse does not take, by position: why."""
    reports: list[ReconcileReport] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return all(report.equal for report in self.reports)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        counts = {"positions": self.positions, "removed": self.removed, "restored": dict(self.restored)}
        trouble = {"lost": self.lost, "refused": self.refused}
        return {
            "equal": self.equal,
            **counts,
            **trouble,
            "reports": [each.to_json() for each in self.reports],
        }


def repair(
    spark: SparkSession,
    urls: Sequence[str],
    plan: IngestPlan,
    inputs: Sequence[Inputs],
    report: Callable[[str], None],
    *,
    dry_run: bool = False,
) -> RepairResult:
    """Repair the warehouse of a plan, channel by channel, as far as possible.

    It takes the ingest's lock. Raises `Busy` where an ingest is at work, after waiting for a dead one's lock.
    """
    done = RepairResult()
    with (
        Connection(urls) as connection,
        driver_lock(
            connection, plan.lock_name, "ingest, rebuild or repair", wait_for_stale_lock()
        ) as check_lock,
    ):
        for each in inputs:
            _ChannelRepair(spark, connection, plan, each, done, check_lock).run(report, dry_run)
    return done


class _ChannelRepair:
    """The repair of one channel."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        plan: IngestPlan,
        inputs: Inputs,
        done: RepairResult,
        check_lock: Callable[[], None],
    ) -> None:
        self._spark, self._connection, self._plan, self._inputs = spark, connection, plan, inputs
        self._done, self._check_lock = done, check_lock
        wal = Wal(open_store(plan.wal.path), plan.wal)
        self._sources = EventSources(connection, inputs, wal, plan.rules)

    def run(self, report: Callable[[str], None], dry_run: bool) -> None:
        """Compare and repair in turn, until a comparison finds nothing, or the same as before."""
        previous: list[WrongPosition] = []
        while True:
            found, wrong = find_wrong(self._spark, self._inputs, ROUND)
            if not wrong or wrong == previous:
                break
            previous = wrong
            self._refuse_empty_logs(wrong)
            self._done.lost, self._done.refused = 0, {}
            self._repair(wrong, dry_run)
            report(f"{self._inputs.channel}: {len(wrong):,} positions {'to put' if dry_run else 'put'} right")
            if dry_run:
                break
        self._done.reports.append(found)

    def _refuse_empty_logs(self, wrong: Sequence[WrongPosition]) -> None:
        """All that is in the warehouse would go where the log is that of another store, or a lost one."""
        for partition in {each.partition for each in wrong}:
            store = self._connection.backends[partition]
            extent = self._connection.run(store.log.extent(self._inputs.channel))
            if extent.last is None and extent.trimmed is None:
                raise HoldfastError(
                    f"the log of {self._inputs.channel!r} on partition {partition} is empty: it proves "
                    "nothing of the warehouse's rows, and none is removed. Check --url, or restore the store"
                )

    def _repair(self, wrong: Sequence[WrongPosition], dry_run: bool) -> None:
        warehouse = open_warehouse(self._plan.warehouse, self._plan.tables)
        try:
            by_partition: dict[int, list[WrongPosition]] = defaultdict(list)
            for each in wrong:
                by_partition[each.partition].append(each)
            for partition, some in by_partition.items():
                spot = ChannelPartition(partition, self._inputs.channel)
                for positions, found in self._steps(partition, some):
                    self._check_lock()
                    self._replace(warehouse, spot, positions, found, dry_run)
        finally:
            warehouse.close()

    def _steps(
        self, partition: int, wrong: Sequence[WrongPosition]
    ) -> Iterator[tuple[Sequence[str], FoundEvents | None]]:
        """What goes in one transaction: the positions to clear, and the events that belong there.

        A position is only cleared where nothing belongs there. Where an event does and nobody has it, the row
        that is there stays: it is all that is left.
        """
        expected = {each.position: each.expected for each in wrong if each.expected is not None}
        missing = set(expected)
        for found in self._sources.find(partition, sorted(expected)):
            names = zip(
                found.rows["position"].to_pylist(), found.rows["transaction_id"].to_pylist(), strict=True
            )
            sound = {at for at, name in names if expected.get(at) == name} & missing
            missing -= sound
            if sound:
                yield sorted(sound), found._replace(rows=rows_at(found.rows, sound))
        self._done.lost += len(missing)
        surplus = [each.position for each in wrong if each.expected is None]
        for start in range(0, len(surplus), AT_ONCE):
            some = surplus[start : start + AT_ONCE]
            yield some, None

    def _replace(
        self,
        warehouse: Warehouse,
        spot: ChannelPartition,
        positions: Sequence[str],
        found: FoundEvents | None,
        dry_run: bool,
    ) -> None:
        rows = segments.SCHEMA.empty_table() if found is None else found.rows
        batch = "" if found is None else found.batch
        if not dry_run:
            rows = self._taken(warehouse, rows)
            positions = [each for each in positions if each not in self._done.refused]
            self._done.removed += warehouse.replace(batch, spot, positions, rows) if positions else 0
        self._done.positions += len(positions)
        if found is not None:
            self._done.restored[found.source] += rows.num_rows

    def _taken(self, warehouse: Warehouse, rows: pa.Table) -> pa.Table:
        """Those that the warehouse takes: its mapping may have changed since they went in."""

        def rehearse(some: pa.Table) -> None:
            warehouse.rehearse(some)

        try:
            rehearse(rows)
        except Terminal as error:
            bad = {row["position"][0].as_py(): str(why) for row, why in isolate(rows, error, rehearse)}
            self._done.refused |= bad
            return rows_without(rows, set(bad))
        return rows


class FoundEvents(NamedTuple):
    """Events that were found together."""

    source: str
    """`wal`, `log` or `archive`."""
    batch: str
    """The name with which they go into the warehouse."""
    rows: pa.Table
    """As the WAL keeps them."""


class EventSources:
    """Where single events of a channel can still be read: the WAL, the log, the archive, in this order."""

    def __init__(self, connection: Connection, inputs: Inputs, wal: Wal, rules: ValidationRules) -> None:
        self._connection, self._inputs, self._wal, self._rules = connection, inputs, wal, rules

    def find(self, partition: int, positions: Sequence[str]) -> Iterator[FoundEvents]:
        """The events at these positions. What is nowhere, or damaged everywhere, is left out."""
        spot, left = ChannelPartition(partition, self._inputs.channel), set(positions)
        for search in (self._in_wal, self._in_log, self._in_archive):
            for found in search(spot, sorted(left)) if left else ():
                left -= set(found.rows["position"].to_pylist())
                yield found

    def _in_wal(self, spot: ChannelPartition, positions: Sequence[str]) -> Iterator[FoundEvents]:
        left = set(positions)
        for name in sorted({*self._wal.records.names("pending"), *self._wal.records.names("confirmed")}):
            try:
                batch = self._wal.batch(name)
                wanted = {each for each in left if any(part.holds(spot, each) for part in batch.parts)}
                if not wanted:
                    continue
                rows = segments.read_all(self._wal.store, batch.segments)
                same = pc.equal(rows["partition"], spot.partition), pc.equal(rows["channel"], spot.channel)
                rows = rows_at(rows.filter(pc.and_(*same)), wanted)
            except (Damaged, NotFound) as damage:
                log.warning("batch %s of the WAL is of no use here: %s", name, damage)
                continue
            left -= set(rows["position"].to_pylist())
            if rows.num_rows:
                yield FoundEvents("wal", name, rows)

    def _in_log(self, spot: ChannelPartition, positions: Sequence[str]) -> Iterator[FoundEvents]:
        for start in range(0, len(positions), AT_ONCE):
            parts: list[pa.RecordBatch] = []
            for position in positions[start : start + AT_ONCE]:
                try:
                    parts += read_range(self._connection, spot, before(position), position)
                except DataLost:  # retention has taken it
                    continue
            yield from self._found("log", spot, parts)

    def _in_archive(self, spot: ChannelPartition, positions: Sequence[str]) -> Iterator[FoundEvents]:
        if self._inputs.archive is None:
            return
        store = open_store(self._inputs.archive)
        for written in read_chain(self._inputs).objects:
            wanted = {each for each in positions if written.first <= each <= written.last}
            if written.spot != spot or not wanted:
                continue
            try:
                rows = rows_at(log_rows(store, (written,)), wanted)
            except Damaged as damage:
                log.warning("%s", damage)
                continue
            yield from self._found("archive", spot, rows.to_batches())

    def _found(
        self, source: str, spot: ChannelPartition, parts: Sequence[pa.RecordBatch]
    ) -> Iterator[FoundEvents]:
        if not sum(part.num_rows for part in parts):
            return
        rows = pa.Table.from_batches(parts).sort_by("position")
        ends = rows["position"][0].as_py(), rows["position"][-1].as_py()
        batch = WalBatch((BatchPart(*spot, *ends),), (), self._wal.clock())
        yield FoundEvents(source, batch.name, to_segment_rows(rows, self._rules))
