"""A whole deployment in a folder: one store, an archive, a WAL and a warehouse, fed without Spark's help."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import holdfast
from holdfast import Event
from holdfast.contracts import Backend
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import CONSUMER, StoreCursors, WalCommitter
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.staging import read_range, stage
from holdfast.pipeline.ingest.validation import ValidationRule, ValidationRules
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.reconcile.inputs import Inputs
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.warehouse import Column, Table, Tables, open_warehouse
from holdfast_chaos.without_spark import archive

CHANNEL = "gbe.events.audit.change"
DAY = datetime(2026, 2, 14, 12, tzinfo=UTC)
TABLES = Tables({CHANNEL: Table("changes", (Column("n", "$.n", "integer"),))})


class Site:
    """One deployment. Each verb does what its job would do, in this process."""

    def __init__(self, url: str, folder: Path, warehouse: str | None = None) -> None:
        self.url, self.folder = url, folder
        self.cold = str(folder / "cold")
        self.file = folder / "warehouse.duckdb"
        self.plan = IngestPlan(
            (CHANNEL,),
            warehouse or f"duckdb://{self.file}",
            WalSettings(path=str(folder / "wal")),
            TABLES,
            ValidationRules({CHANNEL: ValidationRule(required=("n",))}),
        )
        self.inputs = Inputs(CHANNEL, (url,), archive=self.cold, plan=self.plan)
        self.wal = Wal(open_store(self.plan.wal.path), self.plan.wal)
        self.warehouse = open_warehouse(self.plan.warehouse, TABLES)

    def publish(self, *ids: str, time: datetime = DAY, data: object = None) -> None:
        """Events whose data is their number, unless it is given."""
        self.publish_events(
            [Event({"n": n} if data is None else data, each, time=time) for n, each in enumerate(ids)]
        )

    def publish_events(self, events: Sequence[Event]) -> None:
        with holdfast.connect_sync(self.url) as bus:
            bus.create_channel(CHANNEL)
            bus.publish_many(CHANNEL, events)

    def archive(self, batch_size: int = 10) -> None:
        with Connection([self.url]) as connection:
            policy = ArchivePolicy("gbe.events.audit.*", self.cold, batch_size)
            connection.run(archive(connection.backends, open_store(self.cold), policy, 1000))

    def ingest(self, *, load: bool = True) -> None:
        """Read the log to its end into the WAL, and load what is there."""
        with Connection([self.url]) as connection:
            [backend], spot = connection.backends, ChannelPartition(0, CHANNEL)
            connection.run(backend.cursors.attach(CHANNEL, CONSUMER))
            cursors = StoreCursors(connection)
            starts = cursors.positions()
            for cut in connection.run(backend.log.cuts(CHANNEL, starts[spot], 10_000, 10_000)):
                rows = read_range(connection, spot, starts[spot], cut.position)
                staged = list(stage(self.wal.store, rows, self.plan.rules, starts, self.wal.clock()))
                WalCommitter(self.wal, cursors).commit(staged)
        if load:
            Loader(self.wal, self.warehouse).run_once()
            self.warehouse.close()

    def failed(self) -> FailedEvents:
        return FailedEvents(self.wal, self.warehouse, TABLES, self.plan.rules.problem)

    def trim(self) -> int:
        """Let retention take everything that nobody needs; answers how much went."""
        with Connection([self.url]) as connection:
            return connection.run(_trim(connection.backends))


async def _trim(backends: Sequence[Backend]) -> int:
    [store] = backends
    lock = await store.locks.acquire("sweeper", "test", timedelta(minutes=1))
    assert lock is not None
    tomorrow = await store.now() + timedelta(days=1)
    found = await store.retention.trim(CHANNEL, tomorrow, 10_000, lock)
    await store.locks.release(lock)
    return found.removed
