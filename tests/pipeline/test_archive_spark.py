"""The archiver on Spark: the whole way from a channel to objects that plain tools read."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import Event, failpoints
from holdfast.embedded import S3, SparkCluster
from holdfast.pipeline.archive.archiver import Archiver
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import Busy
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast_chaos.checks.pipeline import check_archive

pytestmark = pytest.mark.timeout(600)  # the first of them waits for Spark to start

CHANNEL = "gbe.events.audit.change"
LATE, EARLY = datetime(2026, 2, 14, 23, 59, tzinfo=UTC), datetime(2026, 2, 15, 0, 1, tzinfo=UTC)
KEY = re.compile(
    r"archive/audit/\d{4}/\d\d/\d\d/gbe\.events\.audit\.change-p000-[0-9a-f-]+_[0-9a-f-]+\.jsonl\.gz"
)


def publish(url: str, count: int, start: int = 0, channel: str = CHANNEL, **fields: object) -> set[str]:
    events = [Event({"n": n}, f"e-{n}", **fields) for n in range(start, start + count)]  # type: ignore[arg-type]
    with holdfast.connect_sync(url) as bus:
        bus.publish_many(channel, events)
    return {event.id for event in events}


def wait(condition: Callable[[], object], patience: float = 90.0) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def cold(tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path / "cold"))


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path) -> Callable[..., Archiver]:
    """An archiver in this session's Spark. The same checkpoints for all of a test's archivers."""

    def build(
        url: str, destination: str | None = None, checkpoints: str = "checkpoints", **policy: object
    ) -> Archiver:
        made = ArchivePolicy("gbe.events.audit.*", destination or str(tmp_path / "cold"), **policy)  # type: ignore[arg-type]
        return Archiver(spark, [url], [made], tmp_path / checkpoints)

    return build


@contextmanager
def running(archiver: Archiver) -> Iterator[threading.Thread]:
    """An archiver that runs beside the test; in the end it is told to stop, and must do so cleanly."""
    stop, failed = threading.Event(), []

    def work() -> None:
        try:
            archiver.run(stop)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not failed, failed


def objects(store: ObjectStore) -> list[str]:
    return [entry.name for entry in store.list("archive")]


def advance(url: str, by: timedelta) -> None:
    with Connection([url]) as connection:
        connection.run(connection.backends[0].advance(by))


# from each kind of store to each kind of destination


def check_with_plain_tools(store: ObjectStore, folder: Path, spark: SparkSession, ids: set[str]) -> None:
    """The archive as somebody reads it who has never heard of us."""
    for name in objects(store):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(store.get(name))
    assert all(KEY.fullmatch(name) for name in objects(store))
    frame = spark.read.option("recursiveFileLookup", "true").json(str(folder / "archive"))
    assert {"message_id", "timestamp", "channel", "position", "source", "type", "data"} <= set(frame.columns)
    assert sorted(row.message_id for row in frame.select("message_id").collect()) == sorted(ids)
    query = f"SELECT message_id, data.n FROM read_json('{folder}/archive/**/*.jsonl.gz') ORDER BY 2"
    assert {f"e-{n}" for _, n in duckdb.sql(query).fetchall()} == ids
    texts = (gzip.decompress(path.read_bytes()) for path in (folder / "archive").rglob("*.gz"))
    assert {json.loads(line)["message_id"] for text in texts for line in text.splitlines()} == ids
    days = {name.split("/", 2)[2][:10] for name in objects(store)}
    assert days == {"2026/02/14", "2026/02/15"}
    found = check_archive(store)
    assert (found.wrong, found.orphans, found.ids) == ([], [], ids)


def around_midnight(url: str) -> set[str]:
    return publish(url, 1500, time=LATE) | publish(url, 1000, start=1500, time=EARLY)


def test_postgres_to_a_folder(
    spark: SparkSession, make: Callable[..., Archiver], database: str, cold: ObjectStore, tmp_path: Path
) -> None:
    ids = around_midnight(database)
    metrics = make(database).run_once()
    assert metrics.channels[CHANNEL].rows == 2500
    assert len(objects(cold)) == 3, "1000 and 500 of one day, 1000 of the next"
    check_with_plain_tools(cold, tmp_path / "copy", spark, ids)


@pytest.mark.dealt("source")
@pytest.mark.parametrize("source", ["empty_redis", "empty_nats"], ids=["redis", "nats"])
def test_redis_and_nats_to_s3(
    spark: SparkSession,
    make: Callable[..., Archiver],
    source: str,
    request: pytest.FixtureRequest,
    aws: None,
    tmp_path: Path,
) -> None:
    url = request.getfixturevalue(source)
    ids = around_midnight(url)
    destination = f"s3://bucket/{tmp_path.name}"
    make(url, destination).run_once()
    check_with_plain_tools(open_store(destination), tmp_path / "copy", spark, ids)


@pytest.mark.slow
def test_redis_to_s3_on_a_cluster(
    spark: SparkSession,
    cluster: SparkCluster,
    drive: Callable[..., str],
    empty_redis: str,
    aws: None,
    s3: S3,
    tmp_path: Path,
) -> None:
    """As an operator does it. The workers know nothing of S3 but what the driver tells them."""
    ids = around_midnight(empty_redis)
    destination = f"s3://bucket/{tmp_path.name}"
    flags = ["--stream", "gbe.events.audit.*", "--destination", destination, "--url", empty_redis, "--json"]
    command = [sys.executable, "-m", "holdfast.cli", "archive", "--once", "--master", cluster.url, *flags]
    [answer] = json.loads(drive(*command))
    assert answer == {"channel": CHANNEL, "rows": 2500, "objects": 3, "bytes": answer["bytes"], "commits": 1}
    check_with_plain_tools(open_store(destination), tmp_path / "copy", spark, ids)


@pytest.mark.slow
@pytest.mark.parametrize("destination", ["folder", "s3", "table"])
def test_every_store_to_every_destination(
    store: str,
    destination: str,
    request: pytest.FixtureRequest,
    make: Callable[..., Archiver],
    tmp_path: Path,
) -> None:
    if destination == "s3":
        request.getfixturevalue("aws")
    urls = {
        "folder": lambda: str(tmp_path / "cold"),
        "s3": lambda: f"s3://bucket/{tmp_path.name}",
        "table": lambda: request.getfixturevalue("blank") + "?table=cold",
    }
    url = urls[destination]()
    ids = publish(store, 2500)
    make(store, url).run_once()
    ids |= publish(store, 100, start=2500)
    make(store, url).run_once()
    found = check_archive(open_store(url))
    assert (found.wrong, found.orphans, found.ids) == ([], [], ids)


# replays, checkpoints, kills


def forget_last_commit(checkpoints: Path) -> None:
    """Between the sink's commit and the checkpoint's, the driver dies."""
    [commits] = checkpoints.glob("*/commits")
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for path in (commits / str(last), commits / f".{last}.crc"):
        path.unlink(missing_ok=True)


def test_a_replayed_batch_changes_nothing(
    make: Callable[..., Archiver], database: str, cold: ObjectStore, tmp_path: Path
) -> None:
    ids = publish(database, 2500)
    make(database).run_once()
    before = list(cold.list())
    forget_last_commit(tmp_path / "checkpoints")
    assert make(database).run_once().channels == {}
    assert list(cold.list()) == before
    assert check_archive(cold).ids == ids


@pytest.mark.slow
def test_a_lost_and_an_overtaken_checkpoint_start_at_the_cursor(
    make: Callable[..., Archiver], database: str, cold: ObjectStore, tmp_path: Path
) -> None:
    ids = publish(database, 1500)
    make(database).run_once()
    shutil.rmtree(tmp_path / "checkpoints")
    ids |= publish(database, 10, start=1500)
    make(database).run_once()
    ids |= publish(database, 10, start=1510)
    make(database, checkpoints="elsewhere").run_once()
    with Connection([database]) as connection:
        [backend] = connection.backends
        lock = connection.run(backend.locks.acquire("gbe:lock:sweeper", "test", timedelta(minutes=1)))
        assert lock is not None
        trimmed = connection.run(
            backend.retention.trim(CHANNEL, datetime(2100, 1, 1, tzinfo=UTC), 10_000, lock)
        )
        assert trimmed.removed == 1520
    ids |= publish(database, 10, start=1520)
    make(database).run_once()
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], ids)


KILLS = [pytest.param("after_manifest=kill", id="driver"), pytest.param("before_put=kill:1", id="executor")]


@pytest.mark.slow  # the demo, which the normal tests run, kills a driver too
@pytest.mark.parametrize("failpoint", KILLS)
def test_a_killed_driver_and_a_killed_executor_lose_nothing(
    make: Callable[..., Archiver], database: str, cold: ObjectStore, tmp_path: Path, failpoint: str
) -> None:
    ids = publish(database, 2500)
    flags = ["--stream", "gbe.events.audit.*", "--destination", tmp_path / "cold", "--url", database]
    flags += ["--checkpoints", tmp_path / "checkpoints", "--master", "local[2]"]
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "archive", "--once", *map(str, flags)],
        env=os.environ | {failpoints.VARIABLE: f"archive.{failpoint}"},
        capture_output=True,
        text=True,
    )
    if "manifest" in failpoint:
        assert done.returncode == -signal.SIGKILL, done.stderr
    else:
        assert done.returncode == 1
        assert "Python worker exited" in done.stderr
    with Connection([database]) as connection:
        [cursor] = connection.run(connection.backends[0].cursors.all(CHANNEL))
        assert cursor.position is None
        # A dead archiver's lock ends by itself.
        connection.run(connection.backends[0].advance(timedelta(minutes=1)))
    make(database).run_once()
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], ids)


# a running archiver


def test_objects_are_full_until_time_or_the_end_flushes_them(
    make: Callable[..., Archiver], database: str, cold: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiver = make(database, batch_size=100, batch_timeout=timedelta(minutes=1))
    ids = publish(database, 250)
    with running(archiver):
        wait(lambda: len(objects(cold)) == 2)
        other = "gbe.events.audit.login"
        ids |= publish(database, 30, start=250, channel=other)
        ids |= publish(database, 40, start=280)
        monkeypatch.setattr("holdfast.pipeline.driver_lock.STALE", 1.0)
        with pytest.raises(Busy, match="another archiver is at work"):
            make(database).run_once()
        assert len(objects(cold)) == 2, "neither channel has filled an object, and nothing is old"
        advance(database, timedelta(minutes=2))
        wait(lambda: len(objects(cold)) == 4)
        ids |= publish(database, 5, start=320)
    found = check_archive(cold)
    assert (found.wrong, found.orphans, found.ids) == ([], [], ids)
    assert len(objects(cold)) == 5, "the end flushes the last five"


@pytest.mark.slow
def test_an_outage_of_the_destination_is_waited_for(
    make: Callable[..., Archiver],
    database: str,
    s3: S3,
    aws: None,
    tmp_path: Path,
) -> None:
    destination = f"s3://bucket/{tmp_path.name}"
    archiver = make(database, destination, batch_size=10)
    ids = publish(database, 2000)
    with running(archiver):
        wait(lambda: objects(open_store(destination)))
        s3.kill()
        try:
            ids |= publish(database, 500, start=2000)
            wait(lambda: archiver.metrics.failures > 0)
        finally:
            s3.start()
        wait(lambda: check_archive(open_store(destination)).ids == ids)
    found = check_archive(open_store(destination))
    assert (found.wrong, found.orphans) == ([], [])
