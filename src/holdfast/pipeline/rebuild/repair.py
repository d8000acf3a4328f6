"""Repair: exactly what reconcile names in a warehouse is put right, from what is still there.

A position that is wrong is cleared, and the event that was published there is put in again: what is missing
comes back, what was changed is as it was, what is there twice stands once, what was never published goes. It
is a replacement and no load, so that the ledger does not keep it out, and repeating it changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from holdfast.model.errors import HoldfastError, Terminal
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import driver_lock, wait_for_stale_lock
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.loader.decisions import isolate
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.rebuild.sources import Found, Sources
from holdfast.pipeline.reconcile.bounds import Books
from holdfast.pipeline.reconcile.job import examine
from holdfast.pipeline.reconcile.report import Report, Wrong
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, segments
from holdfast.pipeline.wal.rows import only, without
from holdfast.pipeline.warehouse import Warehouse, open_warehouse

ROUND = 10_000
"""Positions that are put right between two comparisons."""
AT_ONCE = 1000
"""Positions that are only cleared in one transaction."""
Tell = Callable[[str], None]


@dataclass(slots=True)
class Repaired:
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
    reports: list[Report] = field(default_factory=list)

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
    books: Sequence[Books],
    tell: Tell,
    *,
    dry_run: bool = False,
) -> Repaired:
    """Put the warehouse of a plan right, channel by channel, until nothing more can be.

    It takes the ingest's lock: `Busy` where an ingest is at work; one that died is outwaited.
    """
    done = Repaired()
    with (
        Connection(urls) as connection,
        driver_lock(
            connection, plan.lock_name, "ingest, rebuild or repair", wait_for_stale_lock()
        ) as check_lock,
    ):
        for each in books:
            _Channel(spark, connection, plan, each, done, check_lock).run(tell, dry_run)
    return done


class _Channel:
    """The repair of one channel."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Connection,
        plan: IngestPlan,
        books: Books,
        done: Repaired,
        check_lock: Callable[[], None],
    ) -> None:
        self._spark, self._connection, self._plan, self._books = spark, connection, plan, books
        self._done, self._check_lock = done, check_lock
        wal = Wal(open_store(plan.wal.path), plan.wal)
        self._sources = Sources(connection, books, wal, plan.rules)

    def run(self, tell: Tell, dry_run: bool) -> None:
        """Compare and mend in turn, until a comparison finds nothing, or nothing else than before."""
        before: list[Wrong] = []
        while True:
            report, wrong = examine(self._spark, self._books, ROUND)
            if not wrong or wrong == before:
                break
            before = wrong
            self._refuse_empty_logs(wrong)
            self._done.lost, self._done.refused = 0, {}
            self._mend(wrong, dry_run)
            tell(f"{self._books.channel}: {len(wrong):,} positions {'to put' if dry_run else 'put'} right")
            if dry_run:
                break
        self._done.reports.append(report)

    def _refuse_empty_logs(self, wrong: Sequence[Wrong]) -> None:
        """All that is in the warehouse would go where the log is that of another store, or a lost one."""
        for partition in {each.partition for each in wrong}:
            store = self._connection.backends[partition]
            extent = self._connection.run(store.extent(self._books.channel))
            if extent.last is None and extent.trimmed is None:
                raise HoldfastError(
                    f"the log of {self._books.channel!r} on partition {partition} is empty: it proves "
                    "nothing of the warehouse's rows, and none is removed. Check --url, or restore the store"
                )

    def _mend(self, wrong: Sequence[Wrong], dry_run: bool) -> None:
        warehouse = open_warehouse(self._plan.warehouse, self._plan.tables)
        try:
            by_partition: dict[int, list[Wrong]] = defaultdict(list)
            for each in wrong:
                by_partition[each.partition].append(each)
            for partition, some in by_partition.items():
                spot = Spot(partition, self._books.channel)
                for positions, found in self._steps(partition, some):
                    self._check_lock()
                    self._replace(warehouse, spot, positions, found, dry_run)
        finally:
            warehouse.close()

    def _steps(self, partition: int, wrong: Sequence[Wrong]) -> Iterator[tuple[Sequence[str], Found | None]]:
        """What goes in one transaction: the positions to clear, and what is to stand there.

        A position is cleared alone where nothing is to stand there. Where something is and nobody has it, the
        row that is there stays: it is all that is left.
        """
        rightful = {each.position: each.rightful for each in wrong if each.rightful is not None}
        missing = set(rightful)
        for found in self._sources.find(partition, sorted(rightful)):
            names = zip(
                found.rows["position"].to_pylist(), found.rows["transaction_id"].to_pylist(), strict=True
            )
            sound = {at for at, name in names if rightful.get(at) == name} & missing
            missing -= sound
            if sound:
                yield sorted(sound), found._replace(rows=only(found.rows, sound))
        self._done.lost += len(missing)
        surplus = [each.position for each in wrong if each.rightful is None]
        for start in range(0, len(surplus), AT_ONCE):
            some = surplus[start : start + AT_ONCE]
            yield some, None

    def _replace(
        self,
        warehouse: Warehouse,
        spot: Spot,
        positions: Sequence[str],
        found: Found | None,
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
            self._done.restored[found.place] += rows.num_rows

    def _taken(self, warehouse: Warehouse, rows: pa.Table) -> pa.Table:
        """Those that the warehouse takes: its mapping may have changed since they went in."""

        def rehearse(some: pa.Table) -> None:
            warehouse.rehearse(some)

        try:
            rehearse(rows)
        except Terminal as error:
            bad = {row["position"][0].as_py(): str(why) for row, why in isolate(rows, error, rehearse)}
            self._done.refused |= bad
            return without(rows, set(bad))
        return rows
