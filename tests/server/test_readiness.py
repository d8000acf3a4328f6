"""Readiness where Spark drivers run: silent, failing and full ones make the instance not ready."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from running import Running, running
from scene import NAMESPACE, ingest_reporter, wal_report, with_store

import holdfast
from holdfast.model.position import format_position
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.metrics import Freshness, IngestMetrics, WalReport
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalBatch, WalSettings
from holdfast.pipeline.wal.batch import batch_of
from holdfast.server.services import ChildProcess
from holdfast.upkeep.state import driver, key
from kit import CHANNEL


class Idle(ChildProcess):
    """A driver's part whose process somebody else runs."""

    async def run(self) -> None:
        await asyncio.Event().wait()


def ingest_part() -> Idle:
    return Idle("ingest", ["ingest"], os.environ)


async def reasons(system: Running) -> str:
    return str((await system.readiness(503))["reasons"])


async def test_a_driver_that_has_never_reported_is_not_ready(each: holdfast.Bus, tmp_path: Path) -> None:
    store = each.partitions.all[0].backend
    async with running(each, parts=[ingest_part()]) as system:
        assert "the ingest driver has not reported yet" in await reasons(system)
        await with_store(store.url, ingest_reporter(tmp_path).look)
        await system.readiness(200)


async def test_a_driver_that_is_silent_for_three_intervals_is_not_ready(
    bus: holdfast.Bus, tmp_path: Path
) -> None:
    store = bus.partitions.all[0].backend
    await with_store(store.url, ingest_reporter(tmp_path).look)
    async with running(bus, parts=[ingest_part()]) as system:
        await store.advance(timedelta(seconds=25))
        await system.readiness(200)
        assert (await system.metrics())["holdfast_driver_up"] == {("ingest",): 1}
        await store.advance(timedelta(seconds=10))
        assert "the ingest driver has not reported for 3" in await reasons(system)
        assert (await system.metrics())["holdfast_driver_up"] == {("ingest",): 0}


async def test_a_driver_that_fails_says_why_and_is_ready_again_when_it_runs(bus: holdfast.Bus) -> None:
    store, reporter = bus.partitions.all[0].backend, Reporter(NAMESPACE, "archive")

    def fail(connection: Connection) -> None:
        with pytest.raises(RuntimeError), reporter.at_work(connection):
            raise RuntimeError("the bucket is gone")

    await with_store(store.url, fail)
    async with running(bus, parts=[Idle("archive", ["archive"], os.environ)]) as system:
        assert "the archive driver fails: RuntimeError: the bucket is gone" in await reasons(system)
        found = await system.metrics()
        assert found["holdfast_driver_failures_total"] == {("archive",): 1}
        await with_store(store.url, Reporter(NAMESPACE, "archive").look)
        await system.readiness(200)


async def test_a_driver_elsewhere_does_not_make_this_instance_not_ready(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await with_store(store.url, Reporter(NAMESPACE, "archive").look)
    await store.advance(timedelta(hours=1))
    async with running(bus) as system:
        await system.readiness(200)
        assert (await system.metrics())["holdfast_driver_up"] == {("archive",): 0}


async def test_a_full_wal_and_a_damaged_one_are_not_ready(bus: holdfast.Bus, tmp_path: Path) -> None:
    store = bus.partitions.all[0].backend
    wal = Wal(open_store(str(tmp_path / "wal")), WalSettings(max_bytes=1))
    batch = wal.commit(_batch(wal))

    def reporter() -> Reporter:
        return Reporter(NAMESPACE, "ingest", wal_report(wal))

    async with running(bus, parts=[ingest_part()]) as system:
        await with_store(store.url, reporter().look)
        assert "the WAL is not ready: full with " in await reasons(system)
        found = await system.metrics()
        assert found["holdfast_wal_bytes"][()] == batch.bytes > found["holdfast_wal_limit_bytes"][()] == 1
        assert found["holdfast_wal_batches"] == {("pending",): 1, ("failed",): 0, ("quarantined",): 0}
        assert found["consumer_wal_pending_entries"] == {(): 1}
        assert found["holdfast_wal_ready"] == {(): 0}
        wal.quarantine(batch.name, "a flipped byte")
        await with_store(store.url, reporter().look)
        assert f"damaged batches: {batch.name}" in await reasons(system)


async def test_a_warehouse_that_is_behind_is_not_ready(bus: holdfast.Bus, tmp_path: Path) -> None:
    """Also where every cursor is at the end: what is in the WAL has no row yet."""
    store = bus.partitions.all[0].backend
    wal = Wal(open_store(str(tmp_path / "wal")), WalSettings())
    now = datetime.now(UTC)
    found = _batch(wal)
    since = (now - timedelta(minutes=20)).isoformat()
    part = found.parts[0]._replace(since=since)
    batch = wal.commit(WalBatch((part,), found.segments, now))
    metrics = IngestMetrics()
    freshness = Freshness(metrics, NAMESPACE, timedelta(minutes=15))
    freshness.found(wal.pending())
    reporter = Reporter(NAMESPACE, "ingest", WalReport(wal, metrics, freshness))
    async with running(bus, parts=[ingest_part()]) as system:
        await with_store(store.url, reporter.look)
        assert "an event has no row after 120" in await reasons(system)
        told = await system.metrics()
        assert told["holdfast_wal_ready"] == {(): 0}
        assert told["holdfast_warehouse_unloaded_seconds"][()] >= 1200
        await with_store(store.url, freshness.look)
        alerts = await store.log.read(f"{NAMESPACE}.events.system.error", None, 10)
        assert "the warehouse is 120" in alerts[-1].event.data.decode()
        freshness.loaded(batch)
        await with_store(store.url, Reporter(NAMESPACE, "ingest", WalReport(wal, metrics, freshness)).look)
        await system.readiness(200)
        told = await system.metrics()
        assert told["holdfast_warehouse_freshness_seconds"][()] >= 1200
        assert told["holdfast_warehouse_unloaded_seconds"] == {(): 0}


async def test_a_busy_driver_writes_its_record_about_once_a_second(bus: holdfast.Bus) -> None:
    store, reporter, took = bus.partitions.all[0].backend, Reporter(NAMESPACE, "archive"), [0.0]

    def hurry(connection: Connection) -> None:
        began = time.monotonic()
        for _ in range(200):
            reporter.batch({CHANNEL: Amount(1, 1)}, 0.001)
            reporter.look(connection)
        took[0] = time.monotonic() - began

    await with_store(store.url, hurry)
    record = await store.records.get(key(NAMESPACE, driver("archive")))
    assert record is not None
    assert 1 <= record.revision <= 2 + took[0]


def _batch(wal: Wal) -> WalBatch:
    row = dict.fromkeys(SCHEMA.names) | {
        "channel": CHANNEL,
        "position": format_position(1, 1),
        "id": "e-1",
        "source": "default",
        "type": "event",
        "time": datetime.now(UTC),
        "headers": [],
        "data": b"{}",
        "partition": 0,
    }
    rows = pa.RecordBatch.from_pylist([row], SCHEMA)
    return batch_of(stage(wal.store, [rows], ValidationRules(), {}, wal.clock()), wal.clock())
