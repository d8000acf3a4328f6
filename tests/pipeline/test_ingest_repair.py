"""Repair of the WAL: what was damaged by hand is whole again, from the log, else from the archive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pytest

import holdfast
from holdfast import failpoints
from holdfast.deadletters.audit import Audit
from holdfast.failpoints import FailpointError
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.repair import HOLDER, Repairs
from holdfast.pipeline.loader.loader import reload_confirmed
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal.records import GaveUp
from holdfast.pipeline.wal.status import health
from holdfast.pipeline.warehouse import Tables, open_warehouse
from holdfast_chaos import without_spark as plain_ingest
from holdfast_chaos.without_spark import CHANNEL, SparklessIngest, archive, plan_of

SPOT = ChannelPartition(0, CHANNEL)
ALL = [f"o-{n:02}" for n in range(1, 13)]


class Site(SparklessIngest):
    """A plain driver that has twelve events in six pending batches."""

    def fill(self) -> None:
        events = [holdfast.Event({"total": n}, name) for n, name in enumerate(ALL)]
        self.connection.run(self.backend.log.publish(CHANNEL, events))
        while self.step(2):
            pass
        self.batches = self.wal.pending()
        assert [batch.rows for batch in self.batches] == [2] * 6

    @property
    def backend(self) -> holdfast.contracts.Backend:
        return self.connection.backends[0]

    def segment(self, number: int) -> Path:
        return self.folder / "wal" / self.batches[number].segments[0].name

    def record(self, number: int) -> Path:
        return self.folder / "wal" / "pending" / f"{self.batches[number].name}.json"

    def ids(self) -> list[str]:
        self.warehouse.close()
        with duckdb.connect(str(self.folder / "warehouse.duckdb"), read_only=True) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM events ORDER BY id").fetchall()]

    def trim(self) -> None:
        """All that nobody needs."""
        later = datetime.now(UTC) + timedelta(days=1)
        lock = self.connection.run(self.backend.locks.acquire("sweeper", "tester", timedelta(minutes=1)))
        assert lock is not None
        self.connection.run(self.backend.retention.trim(CHANNEL, later, 1000, lock))
        self.connection.run(self.backend.locks.release(lock))

    def length(self) -> int:
        return len(self.connection.run(self.backend.log.read(CHANNEL, None, 1000)))

    def holders(self) -> list[str]:
        return sorted(cursor.name for cursor in self.connection.run(self.backend.cursors.all()))

    def archive(self) -> str:
        """Everything, in a folder of its own; answers its place."""
        cold = str(self.folder / "cold")
        self.connection.run(archive([self.backend], open_store(cold), ArchivePolicy(CHANNEL, cold, 5), 7))
        return cold

    def repaired_from(self) -> set[str]:
        folder = self.wal.records
        return {folder.read(f"repairs/{name}")["repaired_from"] for name in folder.names("repairs")}


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


@pytest.fixture
def site(database: str, tmp_path: Path) -> Iterator[Site]:
    site = Site(database, tmp_path)
    site.fill()
    yield site
    site.close()


def break_four(site: Site) -> Site:
    """One byte flipped, one segment cut, one deleted, one record halved."""
    flip(site.segment(0))
    cut(site.segment(1))
    site.segment(3).unlink()
    cut(site.record(4))
    return site


@pytest.fixture
def broken(site: Site) -> Site:
    return break_four(site)


@pytest.fixture
def broken_on_each(store: str, tmp_path: Path) -> Iterator[Site]:
    """The same, once for every kind of store."""
    site = Site(store, tmp_path)
    site.fill()
    yield break_four(site)
    site.close()


def test_the_loader_repairs_what_it_finds_damaged(broken_on_each: Site) -> None:
    broken = broken_on_each
    broken.loading.round()
    assert broken.ids() == ALL
    survey = broken.wal.survey()
    assert (survey.pending, survey.quarantined) == ([], set())
    assert len(list(broken.wal.records.names("confirmed"))) == 6
    assert broken.repaired_from() == {"the log"}
    assert len(list(broken.wal.records.names("repairs"))) == 4
    assert health(broken.wal).ready
    assert broken.holders() == [CONSUMER], "the log is not held any longer"


def test_a_damaged_wal_in_s3_is_repaired_by_a_driver_elsewhere(
    database: str, tmp_path: Path, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same damage, and nothing of the first driver's own folder."""

    def in_s3(folder: Path, kind: str) -> IngestPlan:
        plan = plan_of(folder, kind)
        return replace(plan, wal=replace(plan.wal, path=f"s3://bucket/{tmp_path.name}/wal"))

    monkeypatch.setattr(plain_ingest, "plan_of", in_s3)
    first = Site(database, tmp_path / "first")
    first.fill()
    first.close()
    names = [batch.segments[0].name for batch in first.batches]
    record = f"pending/{first.batches[4].name}.json"
    flipped = bytearray(first.wal.store.get(names[0]))
    flipped[len(flipped) // 2] ^= 1
    halves = {name: first.wal.store.get(name)[:100] for name in (names[1], record)}
    for name, data in {names[0]: bytes(flipped), **halves}.items():
        assert first.wal.store.swap(name, first.wal.store.tagged(name).tag, data)
    first.wal.store.delete(names[3])
    other = Site(database, tmp_path / "other")
    try:
        other.committer.recover()
        other.loading.round()
        assert other.ids() == ALL
        assert other.wal.survey() == ([], set(), set())
        assert other.repaired_from() == {"the log"}
        assert len(list(other.wal.records.names("repairs"))) == 4
        assert health(other.wal).ready
    finally:
        other.close()


def test_a_damaged_batch_holds_its_events_in_the_log(broken_on_each: Site) -> None:
    """As long as the archive and the log cannot be read, or nobody is there to do it."""
    broken = broken_on_each
    broken.loader.run_once()
    held = Repairs(broken.wal, broken.connection, broken.rules)
    with failpoints.active("wal.after_stage", "raise"), pytest.raises(FailpointError):
        held.run_once()
    assert broken.holders() == [CONSUMER, HOLDER]
    broken.trim()
    assert broken.length() == len(ALL)
    broken.loading.round()
    assert broken.ids() == ALL
    broken.trim()
    assert broken.length() < len(ALL), "and they go when it is whole"


def test_what_the_log_has_no_more_comes_from_the_archive(broken: Site) -> None:
    cold = broken.archive()
    broken.trim()
    assert broken.length() < len(ALL)
    broken.loader.run_once()
    repairs = Repairs(broken.wal, broken.connection, broken.rules, [cold])
    assert sum(each.events for each in repairs.run_once()) == 8
    assert repairs.left == []
    broken.loading.round()
    assert broken.ids() == ALL
    assert open_store(cold).url in broken.repaired_from()


def test_an_archive_that_lacks_a_part_is_no_source(broken: Site) -> None:
    """Neither a damaged object nor a missing manifest may pass for the whole batch."""
    cold = Path(broken.archive())
    broken.trim()
    for file in sorted((cold / "archive").rglob("*.gz"))[:1]:
        flip(file)
    sorted((cold / "manifests").rglob("*.json"))[-1].unlink()
    broken.loader.run_once()
    repairs = Repairs(broken.wal, broken.connection, broken.rules, [str(cold)])
    done = {each.batch for each in repairs.run_once()}
    left = {each.batch: each.error for each in repairs.left}
    assert done | set(left) == {broken.batches[number].name for number in (0, 1, 3, 4)}
    assert broken.batches[0].name in left
    assert all("the log: " in error and cold.name in error for error in left.values())
    assert broken.wal.survey().quarantined == set(left)
    assert not health(broken.wal).ready


def test_nothing_is_held_for_what_is_lost_for_good(broken: Site) -> None:
    broken.trim()
    broken.loading.round()
    assert len(broken.repairs.left) == 4
    assert broken.holders() == [CONSUMER]
    assert broken.ids() == [*ALL[4:6], *ALL[10:]]


def test_a_repair_that_is_damaged_itself_is_repaired(broken: Site) -> None:
    broken.loader.run_once()
    broken.repairs.run_once()
    [first, *_] = (broken.folder / "wal" / "repairs").rglob("*.json")
    cut(first)
    broken.loading.round()
    assert broken.ids() == ALL


def test_a_batch_that_had_failed_is_readable_again(site: Site) -> None:
    """It stays failed; its events are listed and can be retried."""
    name = site.batches[2].name
    site.wal.give_up(name, GaveUp(site.wal.clock(), "expired", "consumer_wal", None, 1))
    cut(site.segment(2))
    site.loading.round()
    assert site.wal.survey().quarantined == set()
    found = site.failed.find()
    assert [event.event_id for event in found] == ALL[4:6]
    assert site.failed.unresolved() == 2
    assert {site.failed.retry(event.id, "ann").status for event in found} == {"resolved"}
    assert site.ids() == ALL
    assert site.failed.unresolved() == 0


@pytest.mark.parametrize("what", ["record", "segment"])
def test_damage_before_the_cursor_moved_stops_no_driver(database: str, tmp_path: Path, what: str) -> None:
    site = Site(database, tmp_path)
    try:
        site.connection.run(site.backend.log.publish(CHANNEL, [holdfast.Event({"total": 1}, ALL[0])]))
        with failpoints.active("wal.after_pending", "raise"), pytest.raises(FailpointError):
            site.step(2)
        site.batches = site.wal.pending()
        cut(site.record(0) if what == "record" else site.segment(0))
        site.run(2, follow=True)
        site.loading.round()
        assert site.ids() == ALL[:1]
        assert site.wal.survey().quarantined == set()
        assert site.cursors.positions()[SPOT] == site.batches[0].parts[0].last
    finally:
        site.close()


def command(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast.cli",
            "ingest",
            "repair",
            "--wal",
            site.wal.settings.path,
            *arguments,
        ],
        env=os.environ | {"HOLDFAST_URL": site.url},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_an_operator_repairs_without_a_running_ingest(broken: Site) -> None:
    done = command(broken, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (len(said["repaired"]), said["left"]) == (4, [])
    assert {each["events"] for each in said["repaired"]} == {2}
    again = command(broken)
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing in the WAL is damaged" in again.stderr
    broken.loading.round()
    assert broken.ids() == ALL


def test_an_operator_repairs_a_batch_whose_record_is_gone(site: Site) -> None:
    """Its plan tells of it; one that a driver is about to make pending is left alone."""
    site.record(2).unlink()
    site.segment(2).unlink()
    events = [holdfast.Event({"total": 0}, "late")]
    site.connection.run(site.backend.log.publish(CHANNEL, events))
    with failpoints.active("wal.before_pending", "raise"), pytest.raises(FailpointError):
        site.step(2)
    done = command(site, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [each["batch"] for each in said["repaired"]] == [site.batches[2].name]
    assert len(list(site.wal.records.names("planned"))) == 7
    site.loading.round()
    assert site.ids() == ALL


def test_an_operator_is_told_what_stays_damaged(broken: Site) -> None:
    broken.trim()
    done = command(broken, "--json")
    assert done.returncode == 4
    said = json.loads(done.stdout)
    assert (said["repaired"], len(said["left"])) == ([], 4)
    assert command(broken).returncode == 4
    assert broken.batches[0].name in command(broken).stdout


def test_an_acceptance_that_is_cut_off_keeps_the_alarm_and_can_be_repeated(broken: Site) -> None:
    broken.trim()
    broken.loading.round()
    [lost, *_] = sorted(broken.wal.survey().quarantined)
    with failpoints.active("wal.before_lost", "raise"), pytest.raises(FailpointError):
        broken.failed.accept_loss(lost, "ann", "disk")
    assert lost in broken.wal.survey().quarantined
    assert broken.failed.accept_loss(lost, "ann", "disk") == 2
    assert lost not in broken.wal.survey().quarantined
    assert {event.status for event in broken.failed.find() if event.batch == lost} == {"abandoned"}


@pytest.mark.parametrize("kind", ["duckdb", "delta"])
def test_a_batch_of_which_nothing_tells_the_ranges_can_be_accepted_as_lost(
    site: Site, tmp_path: Path, kind: str
) -> None:
    name = site.batches[2].name
    cut(site.record(2))
    cut(site.folder / "wal" / "planned" / f"{name}.json")
    site.loading.round()
    assert [each.batch for each in site.repairs.left] == [name]
    warehouse = site.warehouse if kind == "duckdb" else open_warehouse(f"delta://{tmp_path}/delta", Tables())
    failed = FailedEvents(site.wal, warehouse, Tables())
    assert failed.accept_loss(name, "ann", "disk") == 0, "nobody knows how many"
    assert (site.wal.survey().quarantined, failed.unresolved()) == (set(), 0)
    reload_confirmed(site.wal, warehouse, failed)
    site.loading.round()
    assert site.repairs.left == []


def test_a_loss_that_is_accepted_is_recorded_and_ends_the_alarm(broken: Site) -> None:
    broken.trim()
    broken.loading.round()
    lost = sorted(broken.wal.survey().quarantined)
    warehouse = broken.warehouse.url
    broken.warehouse.close()
    unknown = command(broken, "--accept-loss", "nobody", "--yes", "--warehouse", warehouse)
    assert unknown.returncode == 2
    assert "is not damaged" in unknown.stderr
    assert command(broken, "--accept-loss", lost[0], "--warehouse", warehouse).returncode == 1, (
        "nobody said yes"
    )
    flags = [flag for name in lost for flag in ("--accept-loss", name)]
    done = command(
        broken, *flags, "--yes", "--by", "ann", "--notes", "disk", "--warehouse", warehouse, "--json"
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["left"], [each["events"] for each in said["lost"]]) == ([], [2] * 4)
    assert broken.wal.survey().quarantined == set()
    assert (broken.failed.unresolved(), health(broken.wal).ready) == (0, True)
    found = broken.failed.find()
    assert {(event.status, event.resolved_by, event.resolution_notes) for event in found} == {
        ("abandoned", "ann", "disk")
    }
    audited = [
        json.loads(entry.event.data) for entry in broken.connection.run(Audit(broken.backend).latest(9))
    ]
    assert {(each["actor"], each["action"]) for each in audited} == {("ann", "accept loss")}
    broken.loading.round()
    assert broken.ids() == [*ALL[4:6], *ALL[10:]]
    assert command(broken).returncode == 0
