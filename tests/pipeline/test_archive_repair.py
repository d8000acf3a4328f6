"""Verify and repair of an archive: what was broken by hand is named, and put right from the store."""

from __future__ import annotations

import gzip
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import Event
from holdfast.pipeline.archive.manifests import read_catalog
from holdfast.pipeline.archive.objects import text_of
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.repair import ArchiveRepair
from holdfast.pipeline.archive.verify import Origin, VerifyReport, verify
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import open_store
from holdfast_chaos.checks.pipeline import check_archive
from holdfast_chaos.without_spark import archive

pytestmark = pytest.mark.timeout(600)  # the first of them waits for Spark to start

CHANNEL = "gbe.events.audit.change"
SPOT = ChannelPartition(0, CHANNEL)


class Archive:
    """Sixty events over two days, in objects of at most ten and three commits, and the store behind them."""

    def __init__(self, spark: SparkSession, url: str, destination: str) -> None:
        self.spark, self.destination = spark, destination
        self.connection, self.store = Connection([url]), open_store(destination)
        self.backend, self.origin = self.connection.backends[0], Origin(self.connection)
        today = datetime.now(UTC).replace(hour=12)
        times = [today - timedelta(days=n % 2) for n in range(60)]
        events = [Event({"n": n}, f"e-{n}", time=time) for n, time in enumerate(times)]
        self.connection.run(self.backend.log.publish(CHANNEL, events))
        self.connection.run(
            archive([self.backend], self.store, ArchivePolicy(CHANNEL, destination, batch_size=10), 20)
        )
        self.before = self.content()
        self.manifests = read_catalog(self.store).manifests
        assert len(self.manifests) == 3

    def content(self) -> dict[str, bytes]:
        names = [entry.name for folder in ("archive", "manifests") for entry in self.store.list(folder)]
        return {name: self.store.get(name) for name in names}

    def before_lines(self, name: str) -> list[bytes]:
        return gzip.decompress(self.before[name]).splitlines()

    def verify(self) -> VerifyReport:
        return verify(self.spark, self.destination, self.origin)

    def repair(self, *, unproven: bool = False) -> ArchiveRepair:
        repair = ArchiveRepair(self.store, self.origin, unproven=unproven)
        repair.run()
        return repair

    def damage(self, name: str) -> None:
        data = self.store.get(name)
        self.store.delete(name)
        self.store.put(name, data[: len(data) // 2])

    def trim(self) -> None:
        lock = self.connection.run(self.backend.locks.acquire("sweeper", "tester", timedelta(minutes=1)))
        assert lock is not None
        self.connection.run(
            self.backend.retention.trim(CHANNEL, datetime.now(UTC) + timedelta(days=1), 1000, lock)
        )

    def is_sound(self) -> bool:
        """As verify and the rig's own audit say."""
        report, found = self.verify(), check_archive(self.store)
        return report.sound and report.rows == 60 and (found.wrong, len(found.ids)) == ([], 60)


@pytest.fixture
def cold(spark: SparkSession, database: str, tmp_path: Path) -> Iterator[Archive]:
    archive = Archive(spark, database, str(tmp_path / "cold"))
    yield archive
    archive.connection.close()


@pytest.fixture(params=["folder", "s3"])
def place(
    request: pytest.FixtureRequest, spark: SparkSession, database: str, tmp_path: Path
) -> Iterator[Archive]:
    """One of each kind of store."""
    if request.param == "s3":
        request.getfixturevalue("aws")
    where = {"folder": str(tmp_path / "cold"), "s3": f"s3://bucket/{secrets.token_hex(6)}"}
    archive = Archive(spark, database, where[request.param])
    yield archive
    archive.connection.close()


def test_a_channel_of_which_nothing_is_left_is_missed_or_named(cold: Archive) -> None:
    for name in cold.before:
        cold.store.delete(name)
    cold.store.put("manifests/unreadable.json", b"")  # or it would be no archive
    for streams, elsewhere, problems, named in (
        ([], [], 1, [CHANNEL]),
        (["gbe.events.audit.*"], [], 2, []),
        ([], ["gbe.events.audit.*"], 1, []),
    ):
        origin = Origin(cold.connection, streams=streams, elsewhere=elsewhere)
        report = verify(cold.spark, cold.destination, origin)
        assert (len(report.problems), list(report.unassigned)) == (problems, named)


def test_a_sound_archive_is_compared_with_its_store(cold: Archive) -> None:
    report = cold.verify()
    assert (report.sound, report.compared, report.problems) == (True, True, [])
    repair = cold.repair()
    assert (repair.done, repair.left) == ([], [])
    assert cold.content() == cold.before


def test_a_missing_manifest_in_the_middle_is_made_anew(cold: Archive) -> None:
    """What its objects hold is nowhere else: nobody may be told to remove them."""
    gone = cold.manifests[1]
    cold.store.delete(gone.name)
    for report in (cold.verify(), verify(cold.spark, cold.destination)):
        assert not report.sound
        found = {problem.object: problem for problem in report.problems}
        assert {found[each.object].kind for each in gone.objects} == {"unlisted"}
        assert all("do not remove" in found[each.object].message for each in gone.objects)
        assert not any("can be removed" in problem.message for problem in report.problems)
    [done] = cold.repair().done
    assert (done.object, "the same as in the log" in done.message) == (gone.name, True)
    assert cold.content() == cold.before
    assert cold.is_sound()


def test_missing_manifests_at_the_end_are_seen_by_the_cursor(cold: Archive) -> None:
    for gone in cold.manifests[1:]:
        cold.store.delete(gone.name)
    assert not verify(cold.spark, cold.destination).sound, "without the store nothing is promised"
    report = cold.verify()
    assert not report.sound
    [gap] = [problem for problem in report.problems if problem.kind == "gap"]
    assert cold.manifests[-1].last in gap.message
    assert cold.manifests[0].last in gap.message
    assert len(cold.repair().done) == 1, "one manifest stands for both"
    assert cold.is_sound()


def test_a_beginning_without_a_trace_is_seen_by_the_log_and_written_again(cold: Archive) -> None:
    gone = cold.manifests[0]
    for name in (gone.name, *(each.object for each in gone.objects)):
        cold.store.delete(name)
    [gap] = cold.verify().problems
    assert (gap.kind, gap.object) == ("gap", cold.manifests[1].name)
    assert len(cold.repair().done) == 1
    assert cold.is_sound()


def test_everything_that_the_log_still_has_is_written_again(place: Archive) -> None:
    """A missing and a damaged object, a damaged manifest, a whole commit without a trace."""
    first, second, third = place.manifests
    place.store.delete(first.objects[0].object)
    place.damage(first.objects[1].object)
    place.damage(second.name)
    for each in third.objects:
        place.store.delete(each.object)
    place.store.delete(third.name)
    assert not place.verify().sound
    repair = place.repair()
    assert repair.left == []
    assert place.is_sound()
    after = place.content()
    assert {name: after[name] for name in (first.name, *(each.object for each in first.objects))} == {
        name: place.before[name] for name in (first.name, *(each.object for each in first.objects))
    }


def test_an_object_can_be_removed_only_if_all_its_events_are_elsewhere(cold: Archive) -> None:
    """Written with another cut of the log, as by an archiver that died and was replaced."""
    end = cold.manifests[0].last
    rows = list(cold.origin.rows(SPOT, None, end))
    copies = list(ObjectWriter(cold.store, 7, {}).write(rows))
    report = cold.verify()
    found = {problem.object: problem for problem in report.problems}
    assert {problem.kind for problem in report.problems} == {"orphaned"}
    assert set(found) == {each.object for each in copies} - set(cold.before)
    assert all("can be removed" in problem.message for problem in report.problems)
    lost = next(each for each in cold.manifests[0].objects)
    cold.store.delete(lost.object)
    again = {problem.object: problem for problem in cold.verify().problems}
    positions = {json.loads(line)["position"] for line in cold.before_lines(lost.object)}
    for each in copies:
        if each.object in found:
            held = {json.loads(line)["position"] for line in text_of(cold.store, each).splitlines()}
            assert ("can be removed" in again[each.object].message) == (not held & positions)


def test_where_the_log_is_trimmed_nothing_is_listed_without_a_word(cold: Archive) -> None:
    gone = cold.manifests[1]
    cold.store.delete(gone.name)
    cold.trim()
    repair = cold.repair()
    assert (repair.done, [each.object for each in repair.left]) == ([], [gone.name])
    assert not cold.verify().sound
    [done] = cold.repair(unproven=True).done
    assert (done.proven, "not proven" in done.message) == (False, True)
    assert cold.content() == cold.before


def test_an_archive_is_not_filled_from_another_store(
    spark: SparkSession, cold: Archive, new_database: Callable[[], str], tmp_path: Path
) -> None:
    """It has a channel of the same name, whose cursor is further on."""
    database = new_database()
    with holdfast.connect_sync(database), psycopg.connect(database) as connection:
        connection.execute("SELECT nextval('holdfast.event_seq')")
    other = Archive(spark, database, str(tmp_path / "other"))
    try:
        assert other.origin.cursors()[SPOT] > cold.manifests[-1].last
        repair = ArchiveRepair(cold.store, other.origin)
        repair.run()
        assert (repair.done, len(repair.left)) == ([], 1)
        assert "another one" in repair.left[0].message
        assert cold.content() == cold.before
    finally:
        other.connection.close()


def test_a_missing_object_that_the_log_has_no_more_is_left_and_said(cold: Archive) -> None:
    gone = cold.manifests[1].objects[0]
    cold.store.delete(gone.object)
    cold.trim()
    repair = cold.repair(unproven=True)
    assert (repair.done, [each.object for each in repair.left]) == ([], [gone.object])
    assert not cold.verify().sound


@pytest.mark.slow
def test_the_command_repairs_and_verifies(database: str, cold: Archive) -> None:
    cold.store.delete(cold.manifests[1].name)

    def run(verb: str, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "holdfast.cli", "archive", verb, "--destination", cold.destination]
        return subprocess.run(
            [*command, "--master", "local[1]", "--json", *flags],
            env=os.environ | {"HOLDFAST_URL": database},
            capture_output=True,
            text=True,
        )

    assert run("verify").returncode == 1
    done = run("repair")
    assert done.returncode == 0, done.stderr
    [said] = json.loads(done.stdout)
    assert (said["sound"], len(said["repaired"]), said["left"]) == (True, 1, [])
    cold.store.delete(cold.manifests[1].name)
    cold.trim()
    done = run("repair")
    assert (done.returncode, json.loads(done.stdout)[0]["sound"]) == (4, False)
    done = run("repair", "--unproven")
    assert (done.returncode, json.loads(done.stdout)[0]["repaired"][0]["proven"]) == (4, False)
