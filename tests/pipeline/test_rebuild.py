"""Rebuild: a warehouse that is gone, filled again from the WAL and the archive, and proven by counts."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession
from sites import CHANNEL, DAY, Site

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.pipeline.archive.manifests import Manifest
from holdfast.pipeline.archive.objects import Written
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import Busy
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.rebuild import rebuild
from holdfast.pipeline.restage import archive_ranges
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.wal.upkeep import WalUpkeep

OLD = [f"old-{number}" for number in range(12)]
NEW = [f"new-{number}" for number in range(5)]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """Old events that the WAL has cleaned up and retention has trimmed, new ones that both still have, and of
    each kind one that failed; one of them went in by a retry."""
    site = Site(database, tmp_path)
    site.publish(*OLD, time=DAY - timedelta(days=1))
    site.publish("old-typed", data={"n": "x"})
    site.publish("old-retried", data={})
    site.archive()
    site.ingest()
    failed = site.failed()
    failed._validate = lambda channel, data: None  # somebody relaxed the rule
    [name] = [event.id for event in failed.find() if event.event_id == "old-retried"]
    assert failed.retry(name, "ann").status == "resolved"
    site.warehouse.close()
    later = Wal(site.wal.store, site.plan.wal, lambda: site.wal.clock() + timedelta(days=3))
    assert WalUpkeep(later).run_once().batches == 1
    assert site.trim() == 14
    site.publish(*NEW)
    site.publish("new-bad", data={})
    site.archive()
    site.ingest()
    return site


def ids(site: Site) -> list[str]:
    with duckdb.connect(str(site.file), read_only=True) as connection:
        return sorted(row[0] for row in connection.execute("SELECT id FROM changes").fetchall())


def content(site: Site) -> list[tuple[object, ...]]:
    query = 'SELECT * EXCLUDE (ingested_at, batch) FROM changes ORDER BY "position"'
    with duckdb.connect(str(site.file), read_only=True) as connection:
        return connection.execute(query).fetchall()


@pytest.mark.slow
def test_a_deleted_warehouse_is_filled_again(spark: SparkSession, site: Site) -> None:
    before = content(site)
    assert ids(site) == sorted([*OLD, *NEW, "old-retried"])
    site.file.unlink()
    said: list[str] = []
    done = rebuild(spark, [site.url], site.plan, [site.inputs], said.append)
    assert done.equal, done.reports
    assert content(site) == before
    [report] = done.reports
    assert (report.published, report.archived, report.ingested, report.failed) == (20, 20, 18, 2)
    assert (done.batches, done.events) == (1, 12 + len(NEW)), "what failed is not staged again"
    assert any("events from the archive" in line for line in said)
    statuses = sorted((event.event_id, event.status) for event in site.warehouse.failed())
    assert statuses == [("new-bad", "pending"), ("old-retried", "resolved"), ("old-typed", "pending")]
    site.warehouse.close()
    again = rebuild(spark, [site.url], site.plan, [site.inputs], said.append)
    assert again.equal
    assert again.events == 0
    assert content(site) == before


@pytest.mark.slow
def test_one_that_was_cut_short_is_run_again(spark: SparkSession, site: Site) -> None:
    before = content(site)
    site.file.unlink()
    for point in ("rebuild.after_stage", "wal.after_pending"):
        with failpoints.active(point, "raise"), pytest.raises(FailpointError):
            rebuild(spark, [site.url], site.plan, [site.inputs], lambda line: None)
    assert rebuild(spark, [site.url], site.plan, [site.inputs], lambda line: None).equal
    assert content(site) == before


def test_an_ingest_at_work_keeps_a_rebuild_out(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.file.unlink()
    monkeypatch.setattr("holdfast.pipeline.driver_lock.STALE", 1.0)
    with Connection([site.url]) as connection:
        lock = connection.run(
            connection.backends[0].locks.acquire(site.plan.lock_name, "ingest", timedelta(minutes=1))
        )
        assert lock is not None
        with pytest.raises(Busy, match="another ingest or rebuild is at work"):
            rebuild(spark, [site.url], site.plan, [site.inputs], lambda line: None)
    assert not site.file.exists()


def manifest(number: int, rows: int, partition: int = 0) -> Manifest:
    at = [f"0001-{number:016x}", f"0001-{number:016x}f"]
    written = Written(f"archive/{number}", CHANNEL, partition, *at, rows, 1, "")
    return Manifest(ChannelPartition(partition, CHANNEL), f"0001-{number - 1:016x}", (written,))


def test_manifests_go_together_until_a_batch_is_full() -> None:
    chains = [manifest(1, 4), manifest(2, 6), manifest(3, 1), manifest(1, 3, partition=1)]
    found = list(archive_ranges(chains, rows=10))
    assert [len(each.objects) for each in found] == [2, 1, 1]
    assert [each.part.partition for each in found] == [0, 0, 1]
    assert found[0].part.after == chains[0].after
    assert (found[0].part.first, found[0].part.last) == (chains[0].first, chains[1].last)
