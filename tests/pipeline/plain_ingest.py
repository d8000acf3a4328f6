"""An ingest without Spark, to be run in a process of its own.

It reads a portion of the log, stages, commits, loads: the very steps of the job, in one process, so that it
can be killed at each of them at little cost. `counted` breaks the transaction ids as the seed has them.
"""

from __future__ import annotations

import hashlib
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas  # noqa: F401 - Arrow would import it in every process

from holdfast import failpoints
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest import validation as ingest_validation
from holdfast.pipeline.ingest.commit import CONSUMER, Committer, StoreCursors
from holdfast.pipeline.ingest.staging import read_range, stage
from holdfast.pipeline.ingest.validation import Rules
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.warehouse import Column, Table, Tables
from holdfast.pipeline.warehouse.duck import DuckWarehouse

CHANNEL = "orders"
TABLES = Tables({CHANNEL: Table("events", (Column("total", "$.total", "integer"),))})


class PlainIngest:
    """One driver."""

    def __init__(self, url: str, folder: Path, ahead: timedelta = timedelta(0)) -> None:
        self.folder, self.connection = folder, Connection([url])
        settings = WalSettings.of({}, path=str(folder / "wal"))
        self.wal = Wal(open_store(settings.path), settings, lambda: datetime.now(UTC) + ahead)
        self.cursors = StoreCursors(self.connection)
        self.committer = Committer(self.wal, self.cursors)
        self.warehouse = DuckWarehouse(folder / "warehouse.duckdb", TABLES)
        self.loader = Loader(self.wal, self.warehouse)
        self.failed = FailedEvents(self.wal, self.warehouse, TABLES)
        self.connection.run(self.connection.backends[0].attach(CHANNEL, CONSUMER))

    def run(self, portion: int, follow: bool) -> None:
        """Recover, then read to the end of the log."""
        if follow:
            self.committer.recover()
        self.loader.recover()
        while self.step(portion):
            self.loader.run_once()
        self.failed.mirror()

    def step(self, portion: int) -> bool:
        """One micro-batch, up to its cursor."""
        backend, starts = self.connection.backends[0], self.cursors.positions()
        spot = Spot(0, CHANNEL)
        cuts = self.connection.run(backend.cuts(CHANNEL, starts[spot], portion, portion))
        if not cuts:
            return False
        rows = read_range(self.connection, spot, starts[spot], cuts[0].position)
        staged = list(stage(self.wal.store, rows, Rules(), starts, self.wal.clock()))
        self.committer.commit(staged, starts)
        return True

    def close(self) -> None:
        self.warehouse.close()
        self.connection.close()


def count_transactions() -> None:
    """Ids from a counter that every process starts anew, as the seed makes them."""
    counter = itertools.count(int(datetime.now(UTC).timestamp() * 1e6))

    def counted(channel: str, sources: list[str], ids: list[str]) -> tuple[list[str], list[int]]:
        texts = [f"{source}:{event}:{next(counter)}" for source, event in zip(sources, ids, strict=True)]
        digests = [hashlib.sha256(text.encode()).digest()[:16] for text in texts]
        return [each.hex() for each in digests], [
            int.from_bytes(each[:8], "big", signed=True) for each in digests
        ]

    ingest_validation.transaction_ids = counted  # type: ignore[assignment]


def drive(
    url: str,
    folder: Path,
    kill: str | None = None,
    skip: int = 0,
    ahead: int = 0,
    portion: int = 12,
    counted: bool = False,
    follow: bool = True,
) -> None:
    """One driver, from its start to its end or its death. `follow`: its cursor follows the WAL first."""
    if kill is not None:
        failpoints.activate(kill, "kill", after=skip)
    if counted:
        count_transactions()
    driver = PlainIngest(url, folder, timedelta(seconds=ahead))
    driver.run(portion, follow)
    driver.close()
