"""A system in which everything that metrics tell of has happened, and reports as drivers write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from running import Running, running

import holdfast
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.metrics import Freshness, IngestMetrics, WalReport
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalSettings
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.warehouse import Tables, open_warehouse
from kit import CHANNEL, CONSUMER, bury, claim, publish, subscribe, until

NAMESPACE = "gbe"


def ingest_reporter(folder: Path, **knobs: Any) -> Reporter:
    """The reporter of an ingest with an empty WAL."""
    wal = Wal(open_store(str(folder / "wal")), WalSettings(**knobs))
    return Reporter(NAMESPACE, "ingest", wal_report(wal))


def wal_report(wal: Wal, limit: timedelta = timedelta(minutes=15)) -> WalReport:
    """What an ingest that has just started reports of its WAL."""
    metrics = IngestMetrics()
    return WalReport(wal, metrics, Freshness(metrics, NAMESPACE, limit))


def ingest(folder: Path, tables: Tables, channel: str, events: list[tuple[str, str]]) -> None:
    """What the ingest does with events of these ids and positions, without Spark: all but `good` fail."""
    settings = WalSettings(path=str(folder / "wal"))
    wal = Wal(open_store(settings.path), settings)
    now = datetime.now(UTC)
    rows = [
        {
            "channel": channel,
            "position": position,
            "id": name,
            "source": "default",
            "type": "event",
            "time": now,
            "headers": [],
            "data": b'{"total":1}' if name == "good" else b'{"total":"x"}',
            "partition": 0,
        }
        for name, position in events
    ]
    staged = stage(wal.store, [pa.RecordBatch.from_pylist(rows, SCHEMA)], ValidationRules(), {}, now)
    batch = wal.commit(batch_of(staged, now))
    warehouse = open_warehouse(f"duckdb://{folder}/warehouse.duckdb", tables)
    try:
        assert Loader(wal, warehouse, holder="tester").load([batch]) == [(batch, Result.LOADED)]
    finally:
        warehouse.close()


async def with_store(url: str, act: Callable[[Connection], object]) -> None:
    """What a driver does with its connection, in a thread of its own."""

    def work() -> None:
        with Connection([url]) as connection:
            act(connection)

    await asyncio.to_thread(work)


@asynccontextmanager
async def eventful(bus: holdfast.Bus, folder: Path) -> AsyncIterator[Running]:
    """Waiting, leased and dead jobs, a lag, a trim that is held back, a full channel, both drivers."""
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await publish(store, "a", "b", "c")
    await store.cursors.attach(CHANNEL, "archiver")
    await bury(store, (await claim(store, 2))[0])
    [job] = await bus.poll(CHANNEL, CONSUMER)
    await bus.finalize(job, success=True)
    await store.advance(timedelta(days=8))
    archive, ingest = Reporter(NAMESPACE, "archive"), ingest_reporter(folder)
    for reporter in (archive, ingest):
        reporter.batch({CHANNEL: Amount(1000, 5000)}, 0.7)
        await with_store(store.url, reporter.look)
    retention = {CHANNEL: {"max_age": "7d", "max_bytes": 1}}
    async with running(bus, sweeper=True, retention=retention) as system:

        async def swept() -> bool:
            return bool((await system.metrics())["holdfast_sweep_seconds_count"][("0",)])

        await until(swept)
        yield system
