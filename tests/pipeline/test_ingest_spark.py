"""The ingest on Spark: channels into the warehouse, through lost checkpoints, rivals and full WALs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import failpoints
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import Busy
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.ingest.driver import Ingest, IngestSummary
from holdfast.pipeline.ingest.plan import Flush, IngestPlan
from holdfast.pipeline.ingest.validation import ValidationRule, ValidationRules
from holdfast.pipeline.wal import WalSettings
from holdfast.pipeline.warehouse import Column, Table, Tables

CHANNELS = ("gbe.events.orders", "gbe.events.plays")
TABLES = Tables({"gbe.events.plays": Table("playback_events", (Column("title", "$.title"),))})
pytestmark = pytest.mark.timeout(300)
RULES = ValidationRules({"gbe.events.orders": ValidationRule(required=("total",))})


class Site:
    """One store, one WAL, one warehouse."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, **knobs: Any) -> None:
        self.spark, self.url, self.folder = spark, url, folder
        self.file = folder / "warehouse.duckdb"
        self.plan = IngestPlan(
            channels=("gbe.events.>",),
            warehouse=f"duckdb://{self.file}",
            wal=WalSettings(path=str(folder / "wal"), **knobs),
            tables=TABLES,
            rules=RULES,
            max_rows=60,
            flush=Flush(every=timedelta(milliseconds=200)),
        )

    def publish(self, channel: str, first: int, count: int) -> None:
        """Orders, of which every tenth has no total; or plays."""
        events = [
            holdfast.Event(
                {"title": f"t{n}"} if "plays" in channel else {"total": n} if n % 10 else {}, f"e-{n}"
            )
            for n in range(first, first + count)
        ]
        with holdfast.connect_sync(self.url) as bus:
            bus.create_channel(channel)
            bus.publish_many(channel, events)

    def ingest(self) -> Ingest:
        return Ingest(self.spark, [self.url], self.plan, self.folder / "checkpoints")

    def once(self) -> IngestSummary:
        return self.ingest().run_once()

    def lose_checkpoint(self) -> None:
        shutil.rmtree(self.folder / "checkpoints")

    def ask(self, question: str) -> list[tuple[Any, ...]]:
        with duckdb.connect(str(self.file), read_only=True) as connection:
            return connection.execute(question).fetchall()

    def ids(self, table: str = "events") -> list[int]:
        """The numbers in the warehouse, each as often as it is there."""
        return sorted(int(row[0][2:]) for row in self.ask(f"SELECT id FROM {table}"))

    def cursors(self) -> dict[str, str | None]:
        with Connection([self.url]) as connection:
            found = connection.run(connection.backends[0].cursors.all())
        return {cursor.channel: cursor.position for cursor in found if cursor.name == CONSUMER}


@pytest.fixture
def site(spark: SparkSession, database: str, tmp_path: Path) -> Site:
    return Site(spark, database, tmp_path)


def orders(first: int, last: int) -> list[int]:
    return [number for number in range(first, last + 1) if number % 10]


def test_channels_end_up_in_the_warehouse_once(site: Site) -> None:
    """The way through: two channels, several micro-batches, failed records, a lost checkpoint."""
    with holdfast.connect_sync(site.url) as bus:
        bus.declare(CHANNELS[0], {"type": "object", "properties": {"total": {"type": "number"}}})
    site.publish(CHANNELS[0], 1, 90)
    site.publish(CHANNELS[1], 1, 15)
    first = site.once()
    assert (first.written, first.loaded, first.failed, first.left) == (105, 96, 9, 0)
    assert site.ids() == orders(1, 90)
    assert site.ids("playback_events") == list(range(1, 16))
    assert site.ask("SELECT title FROM playback_events WHERE id = 'e-7'") == [("t7",)]
    failed = site.ask("SELECT event_id, failure_layer, failure_reason, last_error FROM failed_events")
    assert site.ask(f'SELECT DISTINCT typeof(total) FROM "{CHANNELS[0]}"') == [("DOUBLE",)], "as declared"
    assert {row[1:] for row in failed} == {("validation", "invalid", "required fields are missing: total")}
    assert len(failed) == 9
    assert len(site.ask("SELECT key FROM holdfast_ledger")) == 2, "both channels in each batch"
    site.publish(CHANNELS[0], 91, 9)
    site.lose_checkpoint()
    assert site.once().written == 9
    assert site.ids() == orders(1, 99)
    assert site.cursors().keys() == set(CHANNELS)


def test_damaged_batches_are_repaired_and_what_is_missing_is_said(site: Site) -> None:
    site.publish(CHANNELS[1], 1, 90)
    with failpoints.active("loader.before_commit", "raise"):
        first = site.once()
    assert (first.written, first.left, first.complete) == (90, 90, False)
    one, other = sorted(site.ingest().wal.pending(), key=lambda batch: batch.name)
    wal = site.folder / "wal"
    for damaged in wal / one.segments[0].name, next((wal / "pending").glob(f"{other.name}*")):
        damaged.write_bytes(damaged.read_bytes()[:-9])
    second = site.once()
    assert (second.repaired, second.loaded, second.left, second.quarantined) == (90, 90, 0, [])
    assert second.complete
    assert site.ids("playback_events") == list(range(1, 91))
    site.publish(CHANNELS[0], 10, 1)
    third = site.once()
    assert (third.left, third.unresolved, third.complete) == (0, 1, False)


@pytest.mark.slow
def test_a_failure_between_commit_and_cursor_is_made_good_by_the_wal(site: Site) -> None:
    site.publish(CHANNELS[0], 1, 30)
    with failpoints.active("wal.after_pending", "raise"), pytest.raises(HoldfastError):
        site.once()
    assert site.cursors() == {CHANNELS[0]: None}
    site.lose_checkpoint()
    site.publish(CHANNELS[0], 31, 5)
    summary = site.once()
    assert (summary.recovery.pending, summary.recovery.recovered) == (30, 30)
    assert summary.written == 5, "what the WAL has is not read again"
    assert site.ids() == orders(1, 35)


@pytest.mark.slow
def test_a_second_ingest_is_told_that_one_is_at_work(site: Site) -> None:
    site.publish(CHANNELS[0], 1, 5)
    with running(site), pytest.raises(Busy):
        site.once()


@pytest.mark.slow
def test_it_runs_until_it_is_told_to_stop(site: Site) -> None:
    site.publish(CHANNELS[0], 1, 20)
    job = site.ingest()
    with running(site, job):
        until(lambda: job.summary.loaded + job.summary.failed == 20)
        site.publish(CHANNELS[0], 21, 20)
        until(lambda: job.summary.loaded + job.summary.failed == 40)
    assert site.ids() == orders(1, 40)
    names = ("writes", "confirms", "failures", "retries")
    samples = [job.metrics.registry.get_sample_value(f"consumer_wal_{name}_total") for name in names]
    assert samples == [40, 36, 4, 0]


@pytest.mark.slow
def test_a_cursor_that_is_set_back_is_followed_and_nothing_is_passed_over(site: Site) -> None:
    """An operator sets it back while the query is ahead: what lies between is read again."""
    site.publish(CHANNELS[0], 1, 20)
    with running(site) as job:
        until(lambda: job.summary.loaded + job.summary.failed == 20)
        with Connection([site.url]) as connection:
            connection.run(connection.backends[0].cursors.detach(CHANNELS[0], CONSUMER))
            connection.run(connection.backends[0].cursors.attach(CHANNELS[0], CONSUMER))
        site.publish(CHANNELS[0], 21, 20)
        until(lambda: len(list(job.wal.records.names("confirmed"))) >= 2 and job.summary.written >= 40)
        until(lambda: not job.wal.pending())
    assert site.ids() == orders(1, 40)


@pytest.mark.slow
def test_a_full_wal_holds_the_source_back(spark: SparkSession, database: str, tmp_path: Path) -> None:
    site = Site(
        spark,
        database,
        tmp_path,
        max_bytes=1,
        retry_interval=timedelta(seconds=1),
        retry_backoff=timedelta(seconds=1),
    )
    site.publish(CHANNELS[0], 1, 100)
    site.file.mkdir()  # nobody can open the warehouse
    job = site.ingest()
    with running(site, job):
        until(lambda: job.summary.written)
        until(lambda: len(job.wal.attempts(job.wal.pending()[0].name)) >= 2)
        assert job.summary.written <= 60, "one micro-batch, and then it waits"
        site.file.rmdir()
        until(lambda: job.summary.loaded + job.summary.failed == 100)
    assert site.ids() == orders(1, 100)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["empty_redis", "empty_nats"])
def test_the_other_stores_do_the_same(spark: SparkSession, store: str, tmp_path: Path, request: Any) -> None:
    site = Site(spark, request.getfixturevalue(store), tmp_path)
    test_channels_end_up_in_the_warehouse_once(site)


@pytest.mark.slow
def test_once_from_the_shell(database: str, tmp_path: Path, drive: Callable[..., str]) -> None:
    with holdfast.connect_sync(database) as bus:
        bus.publish_many("orders", [holdfast.Event({"total": n}, f"o-{n}") for n in range(30)])
    where = ["--wal", "wal", "--warehouse", "duckdb://warehouse.duckdb", "--checkpoints", "checkpoints"]
    flags = ["--once", "--json", "--channel", "orders", "--url", database, "--master", "local[2]", *where]
    said = json.loads(drive(sys.executable, "-m", "holdfast.cli", "ingest", *flags))
    assert (said["written"], said["loaded"], said["failed"], said["left"]) == (30, 30, 0, 0)
    with duckdb.connect(str(tmp_path / "warehouse.duckdb"), read_only=True) as connection:
        assert connection.execute("SELECT count(DISTINCT id) FROM events").fetchall() == [(30,)]


@pytest.mark.slow
def test_once_ends_with_a_code_of_its_own_while_something_is_missing(database: str, tmp_path: Path) -> None:
    with holdfast.connect_sync(database) as bus:
        bus.publish("orders", b"no JSON", id="o-1")
    where = ["--wal", "wal", "--warehouse", "duckdb://warehouse.duckdb", "--checkpoints", "checkpoints"]
    flags = ["--once", "--json", "--channel", "orders", "--url", database, "--master", "local[2]", *where]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "ingest", *flags], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 4, done.stderr
    said = json.loads(done.stdout)
    assert (said["left"], said["failed"], said["unresolved"], said["quarantined"]) == (0, 1, 1, [])
    assert "1 failed events wait for somebody" in done.stderr


@contextmanager
def running(site: Site, job: Ingest | None = None) -> Iterator[Ingest]:
    """An ingest in a thread of its own."""
    job, stop = job or site.ingest(), threading.Event()
    thread = threading.Thread(target=job.run, args=(stop,))
    thread.start()
    try:
        until(lambda: site.cursors() or None)
        yield job
    finally:
        stop.set()
        thread.join()


def until(condition: Callable[[], object], patience: float = 60.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def test_metrics_are_served_under_the_known_names(spark: SparkSession, tmp_path: Path, database: str) -> None:
    job = Site(spark, database, tmp_path).ingest()
    with job.metrics.serve(0) as port, urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    names = ("writes", "confirms", "retries", "failures", "recoveries")
    assert all(f"consumer_wal_{name}_total 0.0" in text for name in names)
    assert "consumer_wal_pending_entries 0.0" in text
