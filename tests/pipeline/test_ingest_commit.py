"""The commit without Spark: what the cursor follows, and rivals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from walkit import source_rows

import holdfast
from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import HoldfastError
from holdfast.pipeline import offsets
from holdfast.pipeline.ingest.commit import CONSUMER, WalCommitter
from holdfast.pipeline.ingest.plan import Flush
from holdfast.pipeline.ingest.repair import Repairs
from holdfast.pipeline.ingest.sink import IngestReader
from holdfast.pipeline.ingest.staging import StageSegments, from_row, read_range, split, stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.offsets import ChannelPartition, Offsets
from holdfast.pipeline.options import Options
from holdfast.pipeline.wal import WalBatch
from holdfast_chaos.without_spark import CHANNEL, SparklessIngest

SPOT = ChannelPartition(0, CHANNEL)


class Driver(SparklessIngest):
    """A plain driver, step by step."""

    def publish(self, first: int, last: int) -> list[str]:
        events = [holdfast.Event({"total": n}, f"o-{n}") for n in range(first, last + 1)]
        receipts = self.connection.run(self.connection.backends[0].log.publish(CHANNEL, events))
        return [receipt.position for receipt in receipts]

    def commit(self, until: str, starts: Offsets) -> WalBatch:
        rows = read_range(self.connection, SPOT, starts[SPOT], until)
        staged = list(stage(self.wal.store, rows, ValidationRules(), starts, self.wal.clock()))
        batch = self.committer.commit(staged)
        assert batch is not None
        return batch

    @property
    def cursor(self) -> str | None:
        return self.cursors.positions()[SPOT]

    def ids(self) -> list[str]:
        self.warehouse.close()
        with duckdb.connect(str(self.folder / "warehouse.duckdb"), read_only=True) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM events ORDER BY id").fetchall()]


@pytest.fixture
def driver(database: str, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(database, tmp_path)
    yield driver
    driver.close()


def test_the_cursor_moves_only_after_the_batch_is_durable(driver: Driver) -> None:
    positions = driver.publish(1, 3)
    starts = driver.cursors.positions()
    with failpoints.active("wal.before_pending", "raise"), pytest.raises(FailpointError):
        driver.commit(positions[-1], starts)
    assert driver.cursor is None
    assert driver.wal.pending() == []
    batch = driver.commit(positions[-1], starts)
    assert driver.cursor == batch.parts[0].last == positions[-1]


def test_a_batch_that_was_planned_only_is_not_taken_for_lost(driver: Driver) -> None:
    """Its events are read again, in a larger batch; as a batch of its own they would fail twice."""
    driver.publish(1, 2)
    positions = [*driver.publish(3, 3)]
    with failpoints.active("wal.before_pending", "raise"), pytest.raises(FailpointError):
        driver.commit(positions[-1], driver.cursors.positions())
    positions += driver.publish(4, 5)
    driver.committer.recover()
    driver.commit(positions[-1], driver.cursors.positions())
    driver.loader.run_once()
    driver.committer.recover()
    survey = driver.wal.survey()
    assert (survey.pending, survey.quarantined) == ([], set())
    assert driver.ids() == [f"o-{n}" for n in range(1, 6)]


def test_a_plan_that_is_forgotten_late_leaves_nothing_that_cannot_be_repaired(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that lost its lock looked before the cursor moved, and forgets the plan after the next driver
    took the batch for lost."""
    positions = driver.publish(1, 3)
    with failpoints.active("wal.before_pending", "raise"), pytest.raises(FailpointError):
        driver.commit(positions[1], driver.cursors.positions())
    [planned] = driver.wal.lost()
    forget = driver.wal.forget_plan

    def late(name: str) -> None:
        driver.commit(positions[2], driver.cursors.positions())
        driver.committer.recover()
        forget(name)

    with monkeypatch.context() as patch:
        patch.setattr(driver.wal, "forget_plan", late)
        driver.committer.recover()
    assert (driver.wal.survey().quarantined, driver.wal.lost()) == ({planned}, [])
    repairs = Repairs(driver.wal, driver.connection, ValidationRules())
    [repaired] = repairs.run_once()
    assert (repaired.batch, repaired.events, repairs.left) == (planned, 2, [])
    driver.loader.run_once()
    assert driver.wal.survey() == ([], set(), set())
    assert driver.ids() == ["o-1", "o-2", "o-3"]


def test_a_batch_ahead_of_the_cursor_moves_it(driver: Driver) -> None:
    positions = driver.publish(1, 3)
    with failpoints.active("wal.after_pending", "raise"), pytest.raises(FailpointError):
        driver.commit(positions[-1], driver.cursors.positions())
    assert driver.cursor is None
    [part] = driver.committer.recover()
    assert driver.cursor == part.last
    assert driver.committer.recover() == []


def test_the_same_range_again_is_the_same_batch(driver: Driver) -> None:
    """As when a driver dies before Spark's own commit, and the micro-batch is run again."""
    positions, starts = driver.publish(1, 3), driver.cursors.positions()
    first = driver.commit(positions[-1], starts)
    again = driver.commit(positions[-1], starts)
    assert again == first
    assert len(list(driver.wal.store.list("segments"))) == 1
    assert driver.cursor == positions[-1]


def test_rows_at_or_below_the_cursor_are_dropped(driver: Driver) -> None:
    """As when a checkpoint is lost or rolled back, and more is read than is new."""
    positions = driver.publish(1, 5)
    driver.commit(positions[1], driver.cursors.positions())
    rows = read_range(driver.connection, SPOT, None, positions[-1])
    [staged] = stage(
        driver.wal.store, rows, ValidationRules(), driver.cursors.positions(), driver.wal.clock()
    )
    [part] = staged.parts
    assert (part.first, part.last, part.rows) == (positions[2], positions[4], 3)


@pytest.mark.concurrency
def test_of_two_drivers_that_overlap_nothing_is_lost_or_doubled(driver: Driver) -> None:
    """Both start at the same cursor; the second one reads further, and commits after the first."""
    positions, starts = driver.publish(1, 6), driver.cursors.positions()
    driver.commit(positions[2], starts)
    driver.commit(positions[5], starts)
    assert driver.cursor == positions[5]
    driver.loader.run_once()
    assert driver.ids() == [f"o-{n}" for n in range(1, 7)]


def test_the_shorter_one_does_not_set_the_cursor_back(driver: Driver) -> None:
    positions, starts = driver.publish(1, 6), driver.cursors.positions()
    driver.commit(positions[5], starts)
    driver.commit(positions[2], starts)
    assert driver.cursor == positions[5]


def test_a_cursor_that_was_set_back_is_never_moved_over_a_gap(driver: Driver) -> None:
    positions = driver.publish(1, 6)
    driver.commit(positions[1], driver.cursors.positions())
    starts = driver.cursors.positions()
    backend = driver.connection.backends[0]
    driver.connection.run(backend.cursors.detach(CHANNEL, CONSUMER))
    driver.connection.run(backend.cursors.attach(CHANNEL, CONSUMER))
    with pytest.raises(HoldfastError, match="set it back"):
        driver.commit(positions[5], starts)
    assert driver.cursor is None
    assert WalCommitter(driver.wal, driver.cursors).recover(), "the first batch leads to the second"
    assert driver.cursor == positions[5]


def test_a_query_that_is_ahead_of_the_cursor_says_where_it_began(driver: Driver, tmp_path: Path) -> None:
    """So that its batch is seen to leave a gap, and the cursor does not pass over it."""
    positions = driver.publish(1, 6)
    options = Options.of({"url": driver.url, "channel": CHANNEL, "consumer": CONSUMER})
    reader = IngestReader(options, StageSegments(str(tmp_path / "wal"), {}, ValidationRules()), Flush())
    start, end = ({SPOT: position} for position in (positions[2], positions[5]))
    [task] = reader.partitions(offsets.dump(start), offsets.dump(end))
    [rows] = reader.read(task)
    reader.stop()
    [described] = rows.to_pylist()
    staged = [from_row(SimpleNamespace(**described))]
    [part] = staged[0].parts
    assert (part.after, part.rows) == (positions[2], 3)
    assert part.since is not None
    with pytest.raises(HoldfastError, match="set it back"):
        driver.committer.commit(staged)
    assert driver.cursor is None


def test_rows_are_told_apart_by_channel() -> None:
    mixed = pa.concat_batches(
        [source_rows(["a"]), source_rows(["b"], channel="other"), source_rows(["c"], first=2)]
    )
    found = [(spot, rows["id"].to_pylist()) for spot, rows in split(mixed)]
    orders, other = ChannelPartition(0, "orders"), ChannelPartition(0, "other")
    assert found == [(orders, ["a"]), (other, ["b"]), (orders, ["c"])]
