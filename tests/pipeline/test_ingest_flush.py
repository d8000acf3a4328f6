"""One batch for all channels: when it is offered, how it is staged, committed and loaded, and its repair."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import holdfast
from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.ingest.plan import Flush
from holdfast.pipeline.ingest.sink import IngestReader
from holdfast.pipeline.ingest.staging import StageSegments, from_row
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.options import Options
from holdfast.pipeline.source import Stored
from holdfast.pipeline.wal import WalBatch
from holdfast_chaos.without_spark import SparklessIngest

CHANNELS = ["a", "b", "c"]
FLUSH = Flush(10, 1 << 20, timedelta(hours=1))


class Site(SparklessIngest):
    """A plain driver that reads several channels as the source offers them."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        for channel in CHANNELS:
            self.connection.run(self.backend.channels.create(channel))
        options = Options.of({"url": url, "channel": ",".join(CHANNELS), "consumer": CONSUMER})
        self.reader = IngestReader(options, StageSegments(self.wal.store.url, {}, ValidationRules()), FLUSH)
        self.start = self.reader.initialOffset()

    @property
    def backend(self) -> holdfast.contracts.Backend:
        return self.connection.backends[0]

    def publish(self, channel: str, *ids: str) -> None:
        self.connection.run(
            self.backend.log.publish(channel, [holdfast.Event({"n": 1}, each) for each in ids])
        )

    def advance(self, **by: float) -> None:
        self.connection.run(self.backend.advance(timedelta(**by)))

    def offered(self) -> Stored:
        """How far the source would go now."""
        self.reader._idle_until = 0.0
        return self.reader.latestOffset(self.start, ReadMaxRows(1000))

    def batch(self) -> WalBatch | None:
        """One micro-batch, as far as it goes without the loader."""
        end = self.offered()
        tasks = self.reader.partitions(self.start, end)
        rows = [row for task in tasks for found in self.reader.read(task) for row in found.to_pylist()]
        self.start = end
        return self.committer.commit([from_row(SimpleNamespace(**row)) for row in rows])

    def ids(self) -> list[str]:
        found = [
            row["id"] for each in CHANNELS for rows in self.warehouse.events(each) for row in rows.to_pylist()
        ]
        self.warehouse.close()
        return sorted(found)

    def close(self) -> None:
        self.reader.stop()
        super().close()


@pytest.fixture
def site(store: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(store, tmp_path)
    yield site
    site.close()


@pytest.fixture
def one(database: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(database, tmp_path)
    yield site
    site.close()


def test_nothing_is_offered_until_the_oldest_has_waited(site: Site) -> None:
    site.publish("a", "a1")
    assert site.offered() == site.start
    site.advance(minutes=44)
    site.publish("b", "b1")
    assert site.offered() == site.start
    site.advance(minutes=2)
    batch = site.batch()
    assert batch is not None
    assert [(part.channel, part.rows) for part in batch.parts] == [("a", 1), ("b", 1)]
    assert all(part.since is not None for part in batch.parts)
    assert len(batch.segments) == 1
    assert site.offered() == site.start


def test_enough_of_all_channels_together_is_offered_at_once(one: Site) -> None:
    for channel in CHANNELS:
        one.publish(channel, *(f"{channel}{n}" for n in range(3)))
    assert one.offered() == one.start
    one.publish("a", "a9")
    batch = one.batch()
    assert batch is not None
    assert [(part.channel, part.rows) for part in batch.parts] == [("a", 4), ("b", 3), ("c", 3)]
    assert one.cursors.positions()[ChannelPartition(0, "b")] == batch.parts[1].last


def test_a_run_over_what_is_there_waits_for_nothing(one: Site) -> None:
    one.publish("c", "c1")
    one.reader.prepareForTriggerAvailableNow()
    assert one.offered() != one.start


def test_an_idle_source_asks_its_stores_less_often(one: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one.offered() == one.start

    def asked(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr("holdfast.pipeline.planner.Planner.news", asked)
    assert one.reader.latestOffset(one.start, ReadMaxRows(1000)) == one.start


def test_a_driver_that_dies_between_two_cursors_is_followed_up(one: Site) -> None:
    for channel in CHANNELS:
        one.publish(channel, f"{channel}1")
    one.advance(hours=1)
    with failpoints.active("wal.mid_cursors", "raise"), pytest.raises(FailpointError):
        one.batch()
    one.connection.run(asyncio.sleep(0))
    moved = one.committer.recover()
    [batch] = one.wal.pending()
    positions = one.cursors.positions()
    assert [positions[part.spot] for part in batch.parts] == [part.last for part in batch.parts]
    assert len(moved) <= len(CHANNELS)
    assert one.committer.recover() == []


def test_other_groups_of_the_same_events_after_a_crash_do_no_harm(one: Site) -> None:
    """A driver dies before any cursor moved, and the next one, whose checkpoint is lost, reads further."""
    start = one.start
    one.publish("a", "a1", "a2")
    one.advance(hours=1)
    with failpoints.active("wal.after_pending", "raise"), pytest.raises(FailpointError):
        one.batch()
    one.loader.run_once()
    one.start = start
    one.publish("a", "a3")
    one.publish("b", "b1")
    one.advance(hours=1)
    again = one.batch()
    assert again is not None
    assert [(part.channel, part.rows) for part in again.parts] == [("a", 3), ("b", 1)]
    one.loader.run_once()
    assert one.ids() == ["a1", "a2", "a3", "b1"]
    assert len(list(one.wal.records.names("confirmed"))) == 2
    assert one.wal.survey().pending == []


def test_many_pending_batches_are_one_transaction(one: Site) -> None:
    for number in range(3):
        one.publish("a", f"a{number}")
        one.advance(hours=1)
        one.batch()
    commits = []
    with failpoints.active("loader.before_commit", lambda: commits.append(1)):
        results = one.loader.run_once()
    assert ([str(result) for _, result in results], len(commits)) == (["loaded"] * 3, 1)
    assert one.ids() == ["a0", "a1", "a2"]


@pytest.mark.parametrize("moved", [True, False])
def test_a_record_that_was_deleted_is_noticed_at_the_start(one: Site, moved: bool) -> None:
    """Once a cursor has passed it, its events are staged anew; before, they are read again."""
    for channel in CHANNELS:
        one.publish(channel, f"{channel}1")
    one.advance(hours=1)
    start = one.start
    if moved:
        one.batch()
    else:
        with failpoints.active("wal.after_pending", "raise"), pytest.raises(FailpointError):
            one.batch()
        one.start = start
    [batch] = one.wal.pending()
    (one.folder / "wal" / "pending" / f"{batch.name}.json").unlink()
    one.committer.recover()
    assert one.wal.survey().quarantined == ({batch.name} if moved else set())
    if not moved:
        one.batch()
    one.loading.round()
    assert one.ids() == ["a1", "b1", "c1"]
    assert one.wal.survey().quarantined == set()
    assert list(one.wal.records.names("planned")) == []
