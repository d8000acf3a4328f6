"""Reports: what a driver on Spark leaves in the store for others to read, while it runs and at its end."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.pipeline.archive.archiver import Archiver
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.driver import Ingest
from holdfast.pipeline.ingest.plan import Flush, IngestPlan
from holdfast.pipeline.wal import WalSettings
from holdfast.upkeep.state import driver, get_report

CHANNEL = "gbe.events.orders"


def publish(url: str, count: int) -> None:
    with holdfast.connect_sync(url) as bus:
        bus.publish_many(CHANNEL, [holdfast.Event({"n": n}, f"e-{n}") for n in range(count)])


def report(url: str, name: str) -> dict[str, Any]:
    with Connection([url]) as connection:
        found = connection.run(get_report(connection.backends[0], "gbe", driver(name)))
    return {} if found is None else found[1]


def test_an_archiver_reports_what_it_has_archived(spark: SparkSession, database: str, tmp_path: Path) -> None:
    publish(database, 30)
    policy = ArchivePolicy(CHANNEL, (tmp_path / "cold").as_uri(), batch_size=10)
    Archiver(spark, [database], [policy], tmp_path / "checkpoints").run_once()
    found = report(database, "archive")
    assert (found["state"], found["batches"], found["failures"]) == ("stopped", 1, 0)
    written = found["channels"][CHANNEL]
    assert written["rows"] == 30
    assert written["bytes"] == sum(path.stat().st_size for path in (tmp_path / "cold").rglob("*.jsonl.gz"))
    [batch] = found["recent"]
    assert batch["rows"] == 30
    assert found["seconds"]["counts"][-1] == 1
    assert found["seconds"]["sum"] == pytest.approx(batch["seconds"])


@pytest.mark.slow
def test_an_ingest_reports_while_it_runs_and_how_its_wal_is(
    spark: SparkSession, database: str, tmp_path: Path
) -> None:
    publish(database, 20)
    wal, soon = WalSettings(path=str(tmp_path / "wal")), Flush(every=timedelta(milliseconds=200))
    plan = IngestPlan((CHANNEL,), f"duckdb://{tmp_path}/w.duckdb", wal, flush=soon)
    job, stop = Ingest(spark, [database], plan, tmp_path / "checkpoints"), threading.Event()
    thread = threading.Thread(target=job.run, args=[stop])
    thread.start()
    try:
        deadline = time.monotonic() + 90
        while (found := report(database, "ingest")).get("wal", {}).get("confirms") != 20:
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
    finally:
        stop.set()
        thread.join()
    assert found["state"] == "running"
    assert found["channels"][CHANNEL]["rows"] == found["wal"]["writes"] == 20
    assert (found["wal"]["ready"], found["wal"]["failures"]) == (True, 0)
    assert report(database, "ingest")["state"] == "stopped"


def test_an_archiver_of_another_name_has_a_report_of_its_own() -> None:
    policy = ArchivePolicy(CHANNEL, "file:///cold", consumer="second", batch_timeout=timedelta(seconds=1))
    assert policy.report_name == "archive.second"
