"""Compaction of an archive: few objects, the same lines, whoever reads or dies meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast import Event, failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import LockLost, ObjectConflict
from holdfast.pipeline.archive import manifests
from holdfast.pipeline.archive.compaction import ArchiveCompaction, groups
from holdfast.pipeline.archive.manifests import intact_catalog, read_catalog
from holdfast.pipeline.archive.objects import text_of
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.repair import ArchiveRepair
from holdfast.pipeline.archive.verify import Origin, verify
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.upkeep import UpkeepCounts
from holdfast_chaos.checks.pipeline import check_archive
from holdfast_chaos.without_spark import archive

CHANNEL = "gbe.events.audit.change"
DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
TODAY = DAY + timedelta(days=1)
LATER = TODAY + timedelta(days=2)


class Cold:
    """Eighty events of a day, every tenth of an earlier one, in objects of at most five and four commits."""

    def __init__(self, url: str, destination: str) -> None:
        self.destination = destination
        self.connection, self.store = Connection([url]), open_store(destination)
        self.backend = self.connection.backends[0]
        self.archive(80)

    def archive(self, count: int, first: int = 0) -> None:
        """Publish, and archive in commits of twenty."""
        times = [DAY - timedelta(days=9 * (number % 10 == 7)) for number in range(count)]
        events = [Event({"n": n}, f"e-{first + n}", time=time) for n, time in enumerate(times)]
        self.connection.run(self.backend.log.publish(CHANNEL, events))
        policy = ArchivePolicy(CHANNEL, self.destination, batch_size=5)
        self.connection.run(archive([self.backend], self.store, policy, 20))

    def compaction(self, keep: timedelta = timedelta(days=1)) -> ArchiveCompaction:
        return ArchiveCompaction(self.store, keep)

    def lines(self) -> list[bytes]:
        """As a reader sees them, in the order of the log."""
        objects = intact_catalog(self.store).objects
        return sorted(line for each in objects for line in text_of(self.store, each).splitlines())

    def names(self, folder: str) -> list[str]:
        return [entry.name for entry in self.store.list(folder)]


@pytest.fixture
def cold(database: str, tmp_path: Path) -> Iterator[Cold]:
    found = Cold(database, str(tmp_path / "cold"))
    yield found
    found.connection.close()


def finish(cold: Cold) -> UpkeepCounts:
    total = UpkeepCounts()
    while (done := cold.compaction().step(TODAY)) != UpkeepCounts():
        total = total.plus(done)
    return total


def test_many_objects_of_a_day_become_one_with_the_same_lines(cold: Cold) -> None:
    before = cold.lines()
    done = finish(cold)
    assert done == UpkeepCounts(15, 2), "the last manifest stays as it is"
    assert cold.lines() == before
    assert len(list(read_catalog(cold.store).objects)) == 2 + 5
    assert (check_archive(cold.store).wrong, len(check_archive(cold.store).ids)) == ([], 80)
    assert finish(cold) == UpkeepCounts(), "done is done"


def test_what_is_replaced_goes_after_a_while(cold: Cold) -> None:
    before = cold.lines()
    finish(cold)
    assert cold.compaction().clean(TODAY) == UpkeepCounts()
    assert cold.compaction().clean(LATER) == UpkeepCounts(removed=2 + 15)
    assert cold.names("compacted") == []
    assert (len(cold.names("manifests")), len(cold.names("archive"))) == (2, 2 + 5)
    assert cold.lines() == before
    assert cold.compaction().clean(LATER) == UpkeepCounts()


@pytest.mark.parametrize("point", ["compact.after_stage", "compact.before_commit", "compact.after_commit"])
def test_readers_see_the_old_or_the_new_wherever_it_is_cut_off(cold: Cold, point: str) -> None:
    before = cold.lines()
    with failpoints.active(point, "raise"), pytest.raises(FailpointError):
        cold.compaction().step(TODAY)
    assert cold.lines() == before
    assert cold.compaction().clean(LATER).removed == (17 if point == "compact.after_commit" else 0)
    finish(cold)
    with failpoints.active("compact.mid_clean", "raise"):
        try:
            cold.compaction().clean(LATER)
        except FailpointError:
            assert cold.lines() == before
    cold.compaction().clean(LATER)
    assert cold.lines() == before
    assert (len(cold.names("manifests")), len(cold.names("archive"))) == (2, 2 + 5), "nothing is left behind"


def test_a_reader_whose_manifests_are_removed_while_it_reads_begins_anew(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "_PARALLEL", 1)
    before = [each.first for each in read_catalog(cold.store).objects]
    names, real = cold.names("manifests"), cold.store.get
    asked: list[str] = []

    def get(name: str) -> bytes:
        asked.append(name)
        if asked.count(names[0]) == 1 and name == names[0]:
            data = real(name)
            finish(cold)
            cold.compaction().clean(LATER)
            return data
        return real(name)

    reader = open_store(cold.destination)
    reader.get = get  # type: ignore[method-assign]
    found = list(read_catalog(reader).objects)
    assert sum(each.rows for each in found) == 80
    assert len(found) < len(before)


def test_whoever_has_lost_the_lock_replaces_nothing(cold: Cold) -> None:
    def lost() -> None:
        raise LockLost("archiver", 1)

    before = read_catalog(cold.store)
    with pytest.raises(LockLost):
        ArchiveCompaction(cold.store, timedelta(0), lost).step(TODAY)
    assert read_catalog(cold.store) == before


def test_of_two_at_once_one_replaces(cold: Cold) -> None:
    before, done = cold.lines(), list[UpkeepCounts]()

    def other() -> None:
        if not done:
            done.append(UpkeepCounts())
            done.append(cold.compaction().step(TODAY))

    with failpoints.active("compact.before_commit", other), pytest.raises(ObjectConflict):
        cold.compaction().step(TODAY)
    assert done[1].into == 2
    assert cold.lines() == before
    cold.compaction().clean(LATER)
    assert cold.lines() == before


def test_a_day_that_is_not_over_is_left_alone(cold: Cold) -> None:
    assert list(groups(read_catalog(cold.store).manifests, DAY.date())) == []


def test_the_archiver_goes_on_where_it_was(cold: Cold) -> None:
    finish(cold)
    cold.archive(40, first=80)
    finish(cold)
    cold.compaction().clean(LATER)
    assert (check_archive(cold.store).wrong, len(check_archive(cold.store).ids)) == ([], 120)
    assert not list(read_catalog(cold.store).gaps())


def test_verify_and_repair_know_of_it(spark: SparkSession, cold: Cold) -> None:
    origin = Origin(cold.connection)
    for now in (TODAY, LATER):
        finish(cold)
        cold.compaction().clean(now)
        report = verify(spark, cold.destination, origin)
        assert (report.sound, report.rows, report.problems) == (True, 80, [])
    merged = max(read_catalog(cold.store).objects, key=lambda each: each.rows)
    cold.store.delete(merged.object)
    cold.store.delete(read_catalog(cold.store).manifests[0].name)
    repair = ArchiveRepair(cold.store, origin)
    repair.run()
    assert repair.left == []
    assert verify(spark, cold.destination, origin).sound
    assert (check_archive(cold.store).wrong, len(check_archive(cold.store).ids)) == ([], 80)
