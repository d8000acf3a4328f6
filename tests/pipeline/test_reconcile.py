"""Reconcile: published = archived = ingested + failed, and every way in which that can be untrue."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from pyspark.sql import SparkSession
from sites import CHANNEL, DAY, TABLES, Site

from holdfast import Event
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.validation import ValidationRule
from holdfast.pipeline.reconcile.job import reconcile
from holdfast.pipeline.reconcile.report import ReconcileReport
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal.records import Confirmation
from holdfast.pipeline.warehouse import Column, Table, Tables, open_warehouse
from holdfast.upkeep.state import latest_reports, reconciliation

IDS = [f"e-{number:02}" for number in range(30)]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def site(database: str, tmp_path: Path) -> Site:
    return Site(database, tmp_path)


def tallies(report: ReconcileReport) -> dict[tuple[str, str], int]:
    return {(each.where, each.kind): each.events for each in report.tallies}


def named(report: ReconcileReport, where: str, kind: str) -> list[str]:
    return [each.id for each in report.differences if (each.where, each.kind) == (where, kind)]


def execute(site: Site, statement: str) -> None:
    with duckdb.connect(str(site.file)) as connection:
        connection.execute(statement)


@pytest.mark.parametrize(
    "backend", ["database", pytest.param("empty_redis", marks=pytest.mark.slow), "empty_nats"]
)
def test_everything_is_accounted_for(
    spark: SparkSession, tmp_path: Path, backend: str, request: pytest.FixtureRequest
) -> None:
    """Good ones, some that fail validation, one that the column does not take; once in Delta tables."""
    warehouse = f"delta://{tmp_path}/tables" if backend == "empty_redis" else None
    site = Site(request.getfixturevalue(backend), tmp_path, warehouse)
    site.publish(*IDS)
    site.publish("bad-1", "bad-2", data={})
    site.publish("typed", data={"n": "x"})
    site.archive()
    site.ingest()
    report = reconcile(spark, site.inputs)
    assert report.equal
    assert (report.published, report.archived, report.ingested, report.failed) == (33, 33, 30, 3)
    assert (report.repeats, report.from_manifests, report.not_compared) == (0, 0, 0)
    assert report.differences == []
    assert list(open_store(site.plan.wal.path).list("scratch")) == []
    with Connection([site.url]) as connection:
        found = connection.run(latest_reports(connection.backends[0], "gbe", reconciliation(), 10))
    assert [told for _, told in found] == [json.loads(json.dumps(report.to_json()))]


def test_what_is_on_its_way_is_waiting_and_not_missing(spark: SparkSession, site: Site) -> None:
    site.publish(*IDS[:10])
    site.archive()
    site.ingest()
    site.publish(*IDS[10:20])
    site.ingest(load=False)
    site.publish(*IDS[20:])
    report = reconcile(spark, site.inputs)
    assert not report.equal
    assert tallies(report) == {("archive", "waiting"): 20, ("warehouse", "waiting"): 20}
    assert named(report, "warehouse", "waiting") == IDS[10:]


def test_the_missing_the_surplus_and_the_doubled_are_named(spark: SparkSession, site: Site) -> None:
    site.publish(*IDS)
    site.archive()
    site.ingest()
    execute(site, "DELETE FROM changes WHERE id = 'e-03'")
    execute(site, "INSERT INTO changes SELECT * FROM changes WHERE id = 'e-04'")
    execute(
        site,
        "INSERT INTO changes SELECT * REPLACE (transaction_id || 'x' AS transaction_id, 'stranger' AS id)"
        " FROM changes WHERE id = 'e-05'",
    )
    report = reconcile(spark, site.inputs)
    wanted = {("warehouse", "missing"): 1, ("warehouse", "doubled"): 1, ("warehouse", "surplus"): 1}
    assert tallies(report) == wanted
    for kind, event in (("missing", "e-03"), ("doubled", "e-04"), ("surplus", "stranger")):
        assert named(report, "warehouse", kind) == [event]
    assert (report.published, report.ingested) == (30, 31)


def test_a_row_beyond_the_end_of_the_log_is_surplus(spark: SparkSession, site: Site) -> None:
    """And one between two events. Of a partition without a store nothing is known."""
    site.publish(*IDS)
    site.archive()
    site.ingest()
    for event, column, value in (
        ("e-05", "position", "position || '0'"),
        ("e-06", "position", "'9' || substr(position, 2)"),
        ("e-07", "partition", "7"),
    ):
        new = f"transaction_id || 'x' AS transaction_id, 'new ' || id AS id, {value} AS \"{column}\""
        execute(site, f"INSERT INTO changes SELECT * REPLACE ({new}) FROM changes WHERE id = '{event}'")
    report = reconcile(spark, site.inputs)
    assert tallies(report) == {("warehouse", "surplus"): 2}
    assert named(report, "warehouse", "surplus") == ["new e-05", "new e-06"]
    assert (report.published, report.ingested, report.not_compared) == (30, 32, 1)


CHANGES = {
    "e-01": "data = '{\"n\":100}'",
    "e-02": "n = 100",
    "e-03": "n = NULL",
    "e-04": 'headers = \'{"paid":"yes"}\'',
    "e-05": "type = 'other'",
    "e-06": "key = 'k'",
    "e-07": "time = time + INTERVAL 1 MICROSECOND",
    "e-08": "source = 'other'",
    "e-09": "data_base64 = 'e30='",
    "e-10": "data = NULL, data_base64 = '!'",
    "e-11": "transaction_hash = transaction_hash + 1",
    "e-12": "data = 'no JSON'",
    "e-13": "id = 'e-99'",
}


def test_whatever_was_changed_is_named(spark: SparkSession, site: Site) -> None:
    """Position and id are as they were: each was an equal one before content was compared."""
    site.publish(*IDS)
    site.publish("binary", data=b"\xff\x00")
    site.archive()
    site.ingest()
    assert reconcile(spark, site.inputs).equal
    for event, change in CHANGES.items():
        execute(site, f"UPDATE changes SET {change} WHERE id = '{event}'")
    report = reconcile(spark, site.inputs)
    assert tallies(report) == {("warehouse", "changed"): len(CHANGES)}
    found = sorted(each.position for each in report.differences)
    assert len(set(found)) == len(CHANGES)


@pytest.mark.dealt("kind")
@pytest.mark.parametrize("kind", ["duckdb", "delta"])
def test_equal_content_is_equal_whatever_it_is(
    spark: SparkSession, database: str, tmp_path: Path, kind: str
) -> None:
    """Every kind of content through the log, archive and warehouse, and after retention took the log."""
    site = Site(database, tmp_path, f"{kind}://{tmp_path}/warehouse")
    site.plan.rules.by_pattern[CHANNEL] = ValidationRule(payload="any")  # type: ignore[index]
    headers = {"z": 'ü \\ "', "a": "\U0001f926\u200d", "\U0001f926": ""}
    events = [
        Event(b'{ "n" : 1 }', "blanks", headers=headers, key="ключ"),
        Event(b'{"n":\n2}', "lines", key=""),
        Event(b"\xff\x00", "bytes", type="t\U0001f926", source="s:1"),
        Event(b"", "empty", time=datetime(1, 1, 1, tzinfo=UTC)),
        Event(b"12.50", "number", time=datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        Event({"n": None, "deep": [[{"x": "\u0000"}]]}, "1:e", headers={"only": "one"}),
    ]
    site.publish_events(events)
    site.archive(batch_size=4)
    site.ingest()
    report = reconcile(spark, site.inputs)
    assert report.equal, report.differences
    assert (report.published, report.ingested, report.failed) == (6, 6, 0)
    assert site.trim() == 6
    report = reconcile(spark, site.inputs)
    assert report.equal, report.differences
    assert report.from_manifests == 6


def test_a_column_that_came_later_is_null_in_rows_from_before(spark: SparkSession, site: Site) -> None:
    wider = Tables({CHANNEL: Table("changes", (*TABLES.of(CHANNEL).columns, Column("also", "$.n", "text")))})
    site.publish(*IDS[:3])
    site.ingest()
    inputs = replace(site.inputs, archive=None, plan=replace(site.plan, tables=wider))
    assert reconcile(spark, inputs).equal, "before the table has the column"
    site.warehouse = open_warehouse(site.plan.warehouse, wider)
    site.publish(*IDS[3:6])
    site.ingest()
    assert reconcile(spark, inputs).equal
    execute(site, "UPDATE changes SET also = NULL WHERE id = 'e-05'")
    assert named(reconcile(spark, inputs), "warehouse", "changed") == ["e-05"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["duckdb", "delta"])
def test_a_warehouse_that_is_gone_is_said_to_be_and_not_made(
    spark: SparkSession, database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    warehouse = tmp_path / "gone"
    site = Site(database, tmp_path, f"{kind}://{warehouse}")
    site.publish(*IDS)
    site.archive()
    site.ingest(load=False)
    site.wal.confirm(site.wal.pending()[0], Confirmation(DAY, "somebody", 30, 30, 0, 0))
    report = reconcile(spark, site.inputs)
    assert tallies(report) == {("warehouse", "missing"): 30}
    assert f"{kind}://{warehouse}: nothing is in it" in caplog.text
    assert not warehouse.exists()


def test_named_differences_are_bounded_and_counted_all_the_same(spark: SparkSession, site: Site) -> None:
    site.publish(*IDS)
    site.ingest()
    execute(site, "DELETE FROM changes")
    report = reconcile(spark, site.inputs, limit=5)
    assert tallies(report)[("warehouse", "missing")] == 30
    assert len(report.differences) == 5


def test_a_repeat_stands_once_and_a_rival_has_failed(spark: SparkSession, site: Site, database: str) -> None:
    """Published again after the store forgot the id, once with the same content and once with other."""
    site.publish(*IDS[:3])
    site.archive()
    site.ingest()
    forget(database)
    site.publish(IDS[0])
    site.publish(IDS[1], data={"n": 99})
    site.archive()
    site.ingest()
    report = reconcile(spark, site.inputs)
    assert report.equal, report.differences
    assert (report.published, report.archived) == (5, 5)
    assert (report.ingested, report.repeats, report.failed) == (3, 1, 1)


def forget(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("DELETE FROM holdfast.keys")


def test_a_retry_that_went_in_is_ingested_and_no_longer_failed(spark: SparkSession, site: Site) -> None:
    site.publish(*IDS[:3])
    site.publish("bad", data={})
    site.ingest()
    failed = site.failed()
    failed._validate = lambda channel, data: None  # somebody relaxed the rule
    assert failed.retry(failed.find()[0].id, "ann").status == "resolved"
    site.warehouse.close()
    report = reconcile(spark, replace(site.inputs, archive=None))
    assert report.equal
    assert (report.archived, report.ingested, report.failed) == (None, 4, 0)


def test_what_retention_trimmed_is_proven_by_the_manifests(spark: SparkSession, site: Site) -> None:
    site.publish(*IDS)
    site.archive()
    site.ingest()
    assert site.trim() == 30
    site.publish("later")
    report = reconcile(spark, site.inputs)
    assert (report.published, report.from_manifests, report.archived) == (31, 30, 30)
    assert tallies(report) == {("archive", "waiting"): 1, ("warehouse", "waiting"): 1}


def test_an_object_that_is_gone_after_trimming_is_a_loss_of_known_size(
    spark: SparkSession, site: Site
) -> None:
    site.publish(*IDS)
    site.archive()
    site.ingest()
    site.trim()
    cold = open_store(site.cold)
    name = next(entry.name for entry in cold.list("archive"))
    cold.delete(name)
    report = reconcile(spark, site.inputs)
    assert not report.equal
    assert (report.published, report.archived, report.ingested) == (30, 20, 30)
    assert named(report, "archive", "unreadable") == [name]
    assert tallies(report)[("archive", "unreadable")] == 10


@pytest.mark.slow
def test_without_an_archive_nothing_is_claimed_of_what_was_trimmed(spark: SparkSession, site: Site) -> None:
    site.publish(*IDS)
    site.ingest()
    site.trim()
    site.publish("later")
    site.ingest()
    report = reconcile(spark, replace(site.inputs, archive=None))
    assert report.equal
    assert (report.published, report.ingested, report.not_compared) == (1, 1, 30)


@pytest.mark.slow
def test_a_store_that_was_lost_does_not_pass_for_an_equal_one(
    spark: SparkSession, site: Site, blank: str
) -> None:
    site.publish(*IDS)
    site.archive()
    site.ingest()
    report = reconcile(spark, replace(site.inputs, urls=(blank,)))
    assert tallies(report) == {("archive", "surplus"): 30, ("warehouse", "surplus"): 30}


@pytest.mark.slow
def test_a_day_is_the_events_own(spark: SparkSession, site: Site, database: str) -> None:
    site.publish(*IDS[:10])
    site.publish(*IDS[10:15], time=DAY + timedelta(days=1))
    site.publish("bad", data={})
    site.archive()
    site.ingest()
    report = reconcile(spark, site.inputs, DAY.date())
    assert report.equal
    assert (report.published, report.archived, report.ingested, report.failed) == (11, 11, 10, 1)
    assert reconcile(spark, site.inputs, date(2026, 2, 15)).published == 5
    forget(database)
    site.publish(IDS[0], time=DAY + timedelta(days=1))  # the same event, says its content, on another day
    site.archive()
    site.ingest()
    report = reconcile(spark, site.inputs, date(2026, 2, 15))
    assert report.equal, report.differences
    assert (report.published, report.ingested, report.repeats) == (6, 5, 1)


@pytest.mark.slow
def test_the_report_is_plain_json(spark: SparkSession, site: Site) -> None:
    site.publish("a")
    site.archive()
    site.ingest()
    found: dict[str, Any] = json.loads(json.dumps(reconcile(spark, site.inputs, DAY.date()).to_json()))
    assert (found["equal"], found["day"], found["ingested"]) == (True, "2026-02-14", 1)
