"""Repair: a warehouse that was damaged by hand is exact again, from the WAL, the log or the archive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from sites import CHANNEL, TABLES, Site

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import Busy
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.reconcile.job import reconcile
from holdfast.pipeline.repair import RepairResult, repair
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.wal.upkeep import WalUpkeep
from holdfast.pipeline.warehouse import Column, Table, Tables

IDS = [f"e-{number:02}" for number in range(20)]
pytestmark = pytest.mark.timeout(600)
Rows = list[tuple[object, ...]]


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    """Twenty events that went in, two of them by another batch, and one that failed."""
    return filled(Site(database, tmp_path))


def filled(site: Site) -> Site:
    site.publish(*IDS[:18])
    site.publish("bad", data={})
    site.archive()
    site.ingest()
    site.publish(*IDS[18:])
    site.archive()
    site.ingest()
    return site


def clean_wal(site: Site) -> None:
    """Let the WAL forget what is confirmed."""
    later = Wal(site.wal.store, site.plan.wal, lambda: site.wal.clock() + timedelta(days=3))
    assert WalUpkeep(later).run_once().batches


def execute(site: Site, *statements: str) -> None:
    with duckdb.connect(str(site.file)) as connection:
        for statement in statements:
            connection.execute(statement)


def content(site: Site) -> Rows:
    query = 'SELECT * EXCLUDE (ingested_at, batch) FROM changes ORDER BY "position", id'
    with duckdb.connect(str(site.file), read_only=True) as connection:
        return connection.execute(query).fetchall()


DAMAGE = (
    "DELETE FROM changes WHERE id IN ('e-01', 'e-02', 'e-19')",
    "INSERT INTO changes SELECT * FROM changes WHERE id = 'e-04'",
    "INSERT INTO changes SELECT * REPLACE (transaction_id || 'x' AS transaction_id, 'stranger' AS id)"
    " FROM changes WHERE id = 'e-05'",
    "UPDATE changes SET n = 1000 WHERE id = 'e-06'",
    "UPDATE changes SET data = '{\"n\":1000}' WHERE id = 'e-07'",
)
"""Three rows deleted, one doubled, one invented, two changed."""


def mend(spark: SparkSession, site: Site, *, dry_run: bool = False) -> RepairResult:
    return repair(spark, [site.url], site.plan, [site.inputs], lambda line: None, dry_run=dry_run)


def test_a_failed_event_that_was_retried_and_whose_row_is_gone_is_put_in_again(
    spark: SparkSession, site: Site
) -> None:
    """It has failed once; since the retry the warehouse is to have it."""
    [bad] = site.failed().find()
    lenient = FailedEvents(site.wal, site.warehouse, TABLES)
    assert lenient.retry(bad.id, "ann").status == "resolved"
    before = content(site)
    execute(site, "DELETE FROM changes WHERE id = 'bad'")
    assert not reconcile(spark, site.inputs).equal
    done = mend(spark, site)
    assert (done.equal, dict(done.restored)) == (True, {"wal": 1})
    assert content(site) == before


def from_wal(site: Site) -> None:
    """As it is."""


def from_log(site: Site) -> None:
    clean_wal(site)


def from_archive(site: Site) -> None:
    clean_wal(site)
    assert site.trim() == 21


@pytest.mark.parametrize(
    ("leave", "place"),
    [
        pytest.param(from_wal, "wal", marks=pytest.mark.slow),  # the tests below have it, too
        (from_log, "log"),
        (from_archive, "archive"),
    ],
)
def test_what_reconcile_names_is_mended(
    spark: SparkSession, site: Site, leave: Callable[[Site], None], place: str
) -> None:
    before = content(site)
    leave(site)
    execute(site, *DAMAGE)
    shown = mend(spark, site, dry_run=True)
    assert not shown.equal
    assert (shown.positions, dict(shown.restored), shown.removed) == (7, {place: 7}, 0)
    assert content(site) != before
    done = mend(spark, site)
    assert done.equal, done.reports
    assert (done.positions, dict(done.restored), done.lost, done.refused) == (7, {place: 7}, 0, {})
    assert done.removed == 6, "one of e-04's and one of e-05's place in addition to four that were wrong"
    assert content(site) == before
    again = mend(spark, site)
    assert (again.equal, again.positions) == (True, 0)
    assert (again.reports[0].ingested, again.reports[0].failed) == (20, 1)


def test_a_delta_table_is_mended_in_one_commit_for_each_batch(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    site = filled(Site(database, tmp_path, f"delta://{tmp_path}/tables"))
    uri = f"{tmp_path}/tables/changes"

    def standing() -> list[dict[str, object]]:
        names = [name for name in DeltaTable(uri).to_pyarrow_dataset().schema.names if name != "ingested_at"]
        return sorted(
            DeltaTable(uri).to_pyarrow_table(columns=names).to_pylist(), key=lambda row: row["position"]
        )

    before = standing()
    table = DeltaTable(uri)
    table.delete("id IN ('e-01', 'e-02', 'e-19')")
    table.update(updates={"n": "1000"}, predicate="id = 'e-06'")
    twice = table.to_pyarrow_table()
    write_deltalake(table, twice.filter(pc.equal(twice["id"], "e-04")), mode="append")
    version = DeltaTable(uri).version()
    done = mend(spark, site)
    assert done.equal, done.reports
    assert (done.positions, done.removed) == (5, 3)
    assert standing() == before
    assert DeltaTable(uri).version() == version + 2, "one commit for each batch"


def test_a_repair_that_is_cut_short_leaves_a_batch_as_it_was(spark: SparkSession, site: Site) -> None:
    before = content(site)
    execute(site, *DAMAGE)
    damaged = content(site)
    with failpoints.active("repair.before_commit", "raise"), pytest.raises(FailpointError):
        mend(spark, site)
    assert content(site) == damaged
    assert mend(spark, site).equal
    assert content(site) == before


def test_what_nobody_has_is_said_and_what_is_left_of_it_stays(spark: SparkSession, site: Site) -> None:
    """A changed row whose original is gone from the WAL, the log and the archive."""
    from_archive(site)
    execute(site, "DELETE FROM changes WHERE id = 'e-19'", "UPDATE changes SET n = 1000 WHERE id = 'e-06'")
    standing = content(site)
    for path in (site.folder / "cold" / "archive").rglob("*.gz"):
        path.unlink()
    done = mend(spark, site)
    assert not done.equal
    assert content(site) == standing, "rows went although nothing says that they are wrong"
    assert "unreadable" in {each.kind for each in done.reports[0].tallies}


def test_a_row_beyond_the_end_of_the_log_stays(spark: SparkSession, site: Site) -> None:
    """A store that lost its newest events looks the same: this may be the last copy of one."""
    new = "transaction_id || 'x' AS transaction_id, '9' || substr(position, 2) AS \"position\""
    execute(site, f"INSERT INTO changes SELECT * REPLACE ({new}) FROM changes WHERE id = 'e-05'")
    before = content(site)
    execute(site, "DELETE FROM changes WHERE id = 'e-01'")
    done = mend(spark, site)
    assert not done.equal
    assert (done.positions, done.removed, content(site)) == (1, 0, before)
    assert {each.kind for each in done.reports[0].tallies} == {"surplus"}


def test_an_event_that_the_mapping_no_longer_takes_is_said(spark: SparkSession, site: Site) -> None:
    execute(site, "DELETE FROM changes WHERE id IN ('e-01', 'e-02')")
    columns = (*TABLES.of(CHANNEL).columns, Column("day", "$.n", "date"))
    plan = replace(site.plan, tables=Tables({CHANNEL: Table("changes", columns)}))
    inputs = replace(site.inputs, plan=plan)
    done = repair(spark, [site.url], plan, [inputs], lambda line: None)
    assert not done.equal
    assert len(done.refused) == 2
    assert {each.kind for each in done.reports[0].tallies} == {"missing"}


def test_an_empty_log_proves_nothing(spark: SparkSession, site: Site, blank: str) -> None:
    """Another store, or one that was lost: every row would be surplus."""
    before = content(site)
    inputs = replace(site.inputs, urls=(blank,), archive=None)
    with pytest.raises(HoldfastError, match="is empty: it proves nothing"):
        repair(spark, [blank], site.plan, [inputs], lambda line: None)
    assert content(site) == before
    assert reconcile(spark, site.inputs).equal


def test_an_ingest_at_work_keeps_a_repair_out(
    spark: SparkSession, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.pipeline.driver_lock.STALE", 1.0)
    with Connection([site.url]) as connection:
        lock = connection.run(
            connection.backends[0].locks.acquire(site.plan.lock_name, "ingest", timedelta(minutes=1))
        )
        assert lock is not None
        with pytest.raises(Busy, match="another ingest, rebuild or repair is at work"):
            mend(spark, site)
