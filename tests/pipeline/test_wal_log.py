"""The WAL: one atomic step, states as objects, leases, damage, cleanup and health."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from walkit import START, Place, position, result, source_rows

from holdfast import failpoints
from holdfast.model.errors import Damaged, LeaseLost
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalBatch, WalSettings, segments
from holdfast.pipeline.wal.log import HeldLease
from holdfast.pipeline.wal.records import Confirmation
from holdfast.pipeline.wal.status import entries, health, status
from holdfast.pipeline.wal.upkeep import WalUpkeep


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_only_staged_is_not_there(place: Place) -> None:
    stage_only(place)
    assert len(list(place.wal.store.list("segments"))) == 1
    assert place.wal.pending() == []


def stage_only(place: Place) -> None:
    list(stage(place.wal.store, [source_rows(["a"])], place.rules, {}, place.clock()))


def test_a_batch_is_pending_for_every_process_at_once(place: Place) -> None:
    batch = place.commit(source_rows(["a", "b"]), source_rows(["c"], first=3))
    elsewhere = Wal(open_store(place.settings.path), place.settings, place.clock)
    assert elsewhere.pending() == [batch]
    assert (batch.rows, batch.parts[0].first, batch.parts[0].last) == (3, position(1), position(3))
    assert [row["id"] for row in segments.read_all(elsewhere.store, batch.segments).to_pylist()] == [
        "a",
        "b",
        "c",
    ]


def test_the_same_positions_are_committed_once(place: Place) -> None:
    first = place.commit(source_rows(["a"]))
    assert place.commit(source_rows(["a"])) == first
    there = [entry.name for entry in place.wal.store.list("segments")]
    assert there == [segment.name for segment in first.segments], "what the loser staged is gone"


def test_a_segment_that_is_gone_before_the_commit_stops_it(place: Place) -> None:
    batch = place.commit(source_rows(["a"]))
    place.wal.records.remove(f"pending/{batch.name}")
    place.path_of(batch.segments[0].name).unlink()
    with pytest.raises(Damaged):
        place.wal.commit(batch)
    assert place.wal.pending() == []


def test_segments_are_small(place: Place) -> None:
    ids = [f"00000000-0000-7000-8000-{number:012}" for number in range(10_000)]
    batch = place.commit(source_rows(ids))
    assert batch.bytes < 10_000 * 45


def test_a_lease_keeps_others_out_until_it_ends(place: Place) -> None:
    leases = place.wal.leases
    lease = leases.claim("b", "one")
    assert lease is not None
    assert (lease.attempt, lease.until - lease.taken_at) == (1, timedelta(minutes=2))
    assert leases.claim("b", "two") is None
    place.clock.advance(seconds=119)
    assert leases.claim("b", "two") is None
    place.clock.advance(seconds=1)
    taken = leases.claim("b", "two")
    assert taken is not None
    assert (taken.holder, taken.attempt) == ("two", 2)
    with pytest.raises(LeaseLost):
        leases.extend(lease)


def test_a_lease_is_extended_while_it_is_in_use(place: Place) -> None:
    lease = place.wal.leases.claim("b", "one")
    assert lease is not None
    hold = HeldLease(place.wal.leases, lease)
    for _ in range(5):
        place.clock.advance(seconds=90)
        hold.keep()
        assert place.wal.leases.claim("b", "two") is None
    latest = place.wal.leases.latest("b")
    assert latest is not None
    assert (latest.number, latest.attempt) == (6, 1)
    hold.release()
    assert place.wal.leases.claim("b", "two") is not None


@pytest.mark.concurrency
def test_of_many_claims_at_once_one_wins(place: Place) -> None:
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda n: place.wal.leases.claim("b", f"loader-{n}"), range(8)))
    assert len([claim for claim in claims if claim is not None]) == 1


def test_a_damaged_lease_counts_as_over(place: Place) -> None:
    assert place.wal.leases.claim("b", "one") is not None
    file = place.path_of("leases/b/000001.json")
    file.write_bytes(file.read_bytes()[:-9])
    taken = place.wal.leases.claim("b", "two")
    assert taken is not None
    assert taken.number == 2


@pytest.mark.parametrize("record", ["attempts", "confirmed", "failed"])
def test_a_damaged_note_stops_nobody(place: Place, record: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of a batch that is settled, or of when to try again: it is named, and the others go on."""
    first = place.commit(source_rows(["a", "b"], data=[b"{}", b"\xff"]))
    with failpoints.active("loader.before_commit", "raise"):
        result(place.loader().load([first]))
    if record != "attempts":
        result(place.loader().load([first], at_once=True))
    [file] = place.path_of(record).rglob("*.json")
    damage(file, "tear")
    place.commit(source_rows(["c"], first=3))
    place.clock.advance(days=1)
    assert Result.LOADED in {result for _, result in place.loader().run_once()}
    WalUpkeep(place.wal).run_once()
    FailedEvents(place.wal, place.warehouse, place.tables).mirror()
    assert place.ids() == ["a", "c"]
    assert file.stem in caplog.text


def test_every_field_of_an_entry_can_be_read(place: Place) -> None:
    batch = place.commit(source_rows(["a", "b"], data=[b'{"x": 1}', b"\xff"]))
    before = list(entries(place.wal, batch.name))
    assert [(e.confirmed, e.failed_permanent, e.attempts) for e in before] == [(False, False, 0)] * 2
    place.clock.advance(seconds=3)
    place.loader().run_once()
    good, bad = entries(place.wal, batch.name)
    assert (good.event_id, good.channel, good.position, good.payload) == (
        "a",
        "orders",
        position(1),
        b'{"x": 1}',
    )
    assert (good.confirmed, good.confirmed_at, good.failed_permanent) == (True, place.clock(), False)
    assert (bad.confirmed, bad.failed_permanent, bad.failure_reason) == (False, True, "invalid")
    assert bad.payload == b'{"data_base64":"/w=="}'
    assert (bad.failed_at, bad.attempts, bad.created_at) == (place.clock(), 1, START)
    assert good.transaction_id != bad.transaction_id
    assert status(place.wal, batch.name).state == "confirmed"


def test_a_lease_is_shown_while_it_runs(place: Place) -> None:
    batch = place.commit(source_rows(["a"]))
    place.wal.leases.claim(batch.name, "one")
    [entry] = entries(place.wal, batch.name)
    assert (entry.lease_holder, entry.lease_expiry) == ("one", START + timedelta(minutes=2))
    assert entry.last_attempt_at == START


@pytest.mark.parametrize("harm", ["flip", "tear", "remove"])
def test_a_damaged_segment_is_quarantined_and_named_and_never_served(place: Place, harm: str) -> None:
    batch, healthy = place.commit(source_rows(["a", "b"])), place.commit(source_rows(["c"], first=3))
    damage(place.path_of(batch.segments[0].name), harm)
    results = {each.name: result for each, result in place.loader().run_once()}
    assert results == {batch.name: Result.QUARANTINED, healthy.name: Result.LOADED}
    assert place.ids() == ["c"]
    found = place.wal.damage(batch.name)
    assert found is not None
    assert batch.segments[0].name in found.error
    assert place.wal.pending() == []
    assert health(place.wal).quarantined == (batch.name,)
    assert not health(place.wal).ready
    assert batch.name in health(place.wal).message
    with pytest.raises(Damaged):
        list(entries(place.wal, batch.name))


@pytest.mark.parametrize("harm", ["flip", "tear"])
def test_a_damaged_record_of_a_batch_is_quarantined_and_named(place: Place, harm: str) -> None:
    batch, healthy = place.commit(source_rows(["a"])), place.commit(source_rows(["b"], first=2))
    damage(place.path_of(f"pending/{batch.name}.json"), harm)
    assert place.loader().run_once() == [(healthy, Result.LOADED)]
    found = place.wal.damage(batch.name)
    assert found is not None
    assert batch.name in found.error
    assert health(place.wal).quarantined == (batch.name,)


def damage(file: Path, harm: str) -> None:
    data = bytearray(file.read_bytes())
    match harm:
        case "flip":
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
        case "tear":
            file.write_bytes(data[:-7])
        case _:
            file.unlink()


def test_confirmed_batches_go_after_their_time_and_failures_stay(place: Place) -> None:
    place.commit(source_rows(["a", "b"], data=[b"{}", b"\xff"]))
    place.loader().run_once()
    place.clock.advance(hours=23)
    waiting = place.commit(source_rows(["c"], first=3))
    assert WalUpkeep(place.wal).run_once().batches == 0
    place.clock.advance(hours=1)
    assert WalUpkeep(place.wal).run_once().batches == 1
    assert WalUpkeep(place.wal).run_once().batches == 0
    assert place.wal.pending() == [waiting]
    kinds = {entry.name.split("/")[0] for entry in place.wal.store.list()}
    assert kinds == {"failed", "owners", "pending", "planned", "segments"}
    assert [entry.name for entry in place.wal.store.list("segments")] == [waiting.segments[0].name]


def test_a_cleanup_cut_short_never_brings_a_batch_back(place: Place) -> None:
    """Each prefix of what a cleanup removes, as a crash would leave it."""
    removed: list[str] = []
    batch = place.commit(source_rows(["a"]))
    place.loader().run_once()
    place.clock.advance(hours=24)
    copies = {entry.name: place.wal.store.get(entry.name) for entry in place.wal.store.list()}
    delete = place.wal.store.delete

    def recorded(name: str) -> None:
        removed.append(name)
        delete(name)

    place.wal.store.delete = recorded  # type: ignore[method-assign]
    WalUpkeep(place.wal).run_once()
    assert removed[-1] == f"confirmed/{batch.name}.json"
    for cut in range(len(removed)):
        for name in removed[cut:]:
            place.wal.store.put(name, copies[name])
        assert place.wal.pending() == [], f"after {removed[:cut]}"
        for name in removed[cut:]:
            delete(name)


def test_orphans_go_after_a_day(place: Place) -> None:
    stage_only(place)
    kept = place.commit(source_rows(["b"], first=2))
    place.clock.advance(hours=24)
    assert WalUpkeep(place.wal).run_once().segments == 0
    place.clock.advance(seconds=1)
    assert WalUpkeep(place.wal).run_once().segments == 1
    assert [entry.name for entry in place.wal.store.list("segments")] == [kept.segments[0].name]


def test_nothing_is_taken_for_an_orphan_while_a_record_cannot_be_read(place: Place) -> None:
    batch = place.commit(source_rows(["b"]))
    damage(place.path_of(f"pending/{batch.name}.json"), "flip")
    place.clock.advance(days=2)
    assert WalUpkeep(place.wal).run_once().segments == 0
    assert place.path_of(batch.segments[0].name).exists()


def test_health_tells_what_waits_and_when_it_is_full(tmp_path: Path) -> None:
    place = Place(tmp_path, max_bytes=5_000)
    assert health(place.wal).ready
    place.commit(source_rows(["a", "b"]))
    place.clock.advance(seconds=90)
    found = health(place.wal)
    assert (found.batches, found.entries, found.oldest, found.full) == (1, 2, timedelta(seconds=90), False)
    assert found.message == "2 entries pending in 1 batches, the oldest for 1m30s"
    place.commit(source_rows(["c"], first=3))
    assert health(place.wal).full
    place.loader().run_once()
    assert health(place.wal).ready


def test_a_confirmation_is_written_once(place: Place) -> None:
    batch: WalBatch = place.commit(source_rows(["a"]))
    assert place.wal.confirm(batch, Confirmation(START, "one", 1, 1, 0, 0))
    assert not place.wal.confirm(batch, Confirmation(START, "two", 1, 1, 0, 0))
    found = place.wal.confirmation(batch.name)
    assert found is not None
    assert found.holder == "one"


def test_the_whole_wal_works_on_s3(aws: None, tmp_path: Path) -> None:
    settings = WalSettings(path="s3://wal/ingest")
    place = Place(tmp_path)
    place.wal = Wal(open_store(settings.path), settings, place.clock)
    batch = place.commit(source_rows(["a", "b"], data=[b"{}", b"\xff"]))
    assert place.commit(source_rows(["a", "b"], data=[b"{}", b"\xff"])) == batch
    assert place.loader().run_once() == [(batch, Result.LOADED)]
    assert place.ids() == ["a"]
    place.clock.advance(days=1)
    assert WalUpkeep(place.wal).run_once().batches == 1
    assert {entry.name.split("/")[0] for entry in place.wal.store.list()} == {"failed", "owners"}
