"""The loader: confirm, retry, isolate, expire, recover; and what holds while parts are down."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest
from walkit import Place, balance, load, position, result, source_rows

from holdfast import failpoints
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest import validation as ingest_validation
from holdfast.pipeline.ingest.loader_thread import LoaderThread
from holdfast.pipeline.ingest.metrics import Freshness, IngestMetrics
from holdfast.pipeline.ingest.repair import Repairs
from holdfast.pipeline.loader.decisions import Recovery, Result
from holdfast.pipeline.loader.loader import Loader, reload_confirmed
from holdfast.pipeline.wal import WalBatch, segments
from holdfast.pipeline.wal.batch import transaction_id
from holdfast.pipeline.wal.status import entries, status
from holdfast.pipeline.wal.upkeep import WalUpkeep
from holdfast.pipeline.warehouse import Column, Table, Tables
from holdfast.pipeline.warehouse.duck import DuckWarehouse

NUMBERS = Tables({"orders": Table("events", (Column("total", "$.total", "integer"),))})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def outage(place: Place) -> Iterator[None]:
    """Nobody can open the warehouse's file: another process holds it, as far as DuckDB can see."""
    place.warehouse.close()
    hidden = place.file.with_suffix(".away")
    if place.file.exists():
        os.rename(place.file, hidden)
    place.file.mkdir()
    yield
    place.file.rmdir()
    if hidden.exists():
        os.rename(hidden, place.file)


def test_a_drain_goes_on_where_a_batch_and_its_leases_have_gone_meanwhile(
    place: Place, database: str
) -> None:
    """Another loader held it, confirmed it, and it was cleaned away before this one asked for how long."""
    batch = place.commit(source_rows(["a", "b"]))
    lease = place.wal.leases.claim(batch.name, "another")
    assert lease is not None
    found: list[Result] = []

    def end(held: WalBatch, result: Result) -> None:
        found.append(result)
        place.wal.leases.release(lease)
        assert place.loader("another").run_once() == [(held, Result.LOADED)]
        place.clock.advance(hours=25)

    metrics = IngestMetrics()
    with Connection([database]) as connection:
        thread = LoaderThread(
            place.wal,
            Loader(place.wal, place.warehouse, watch=end),
            FailedEvents(place.wal, place.warehouse, place.tables, place.rules.problem),
            Repairs(place.wal, connection, place.rules),
            metrics,
            Freshness(metrics, "gbe", timedelta(minutes=15)),
        )
        assert thread.drain() == []
    assert found == [Result.HELD]
    assert place.wal.leases.latest(batch.name) is None
    assert place.ids() == ["a", "b"]


def test_a_pending_batch_goes_in_and_is_confirmed(place: Place) -> None:
    batch = place.commit(source_rows(["a", "b"]))
    assert place.loader().run_once() == [(batch, Result.LOADED)]
    assert place.loader().run_once() == []
    assert place.ids() == ["a", "b"]
    confirmation = place.wal.confirmation(batch.name)
    assert confirmation is not None
    assert (confirmation.rows, confirmation.inserted, confirmation.duplicates, confirmation.failed) == (
        2,
        2,
        0,
        0,
    )


def test_batches_that_overlap_leave_every_event_once(place: Place) -> None:
    """As after a lost checkpoint, or with two drivers: the second batch starts before the first one ends."""
    place.commit(source_rows(["a", "b", "c"]))
    place.commit(source_rows(["b", "c", "d"], first=2))
    place.loader().run_once()
    held, wanted = balance(place)
    assert held == wanted
    assert place.ids() == ["a", "b", "c", "d"]


def test_an_id_from_a_counter_would_double_them(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive control: with the seed's ids, which a restart counts anew, the same evidence shows it."""
    counter = iter(range(100))

    def counted(channel: str, sources: list[str], ids: list[str]) -> tuple[list[str], list[int]]:
        names = [f"{source}:{event}:{next(counter)}" for source, event in zip(sources, ids, strict=True)]
        digests = [hashlib.sha256(name.encode()).digest()[:16] for name in names]
        return [d.hex() for d in digests], [int.from_bytes(d[:8], "big", signed=True) for d in digests]

    monkeypatch.setattr(ingest_validation, "transaction_ids", counted)
    place.commit(source_rows(["a", "b", "c"]))
    place.commit(source_rows(["b", "c", "d"], first=2))
    place.loader().run_once()
    assert place.ids() == ["a", "b", "b", "c", "c", "d"]


def test_an_attempt_that_failed_does_not_make_the_next_one_a_duplicate(place: Place) -> None:
    """Nothing counts as seen before it is durable."""
    place.commit(source_rows(["a", "b"]))
    with failpoints.active("loader.before_commit", "raise"):
        [(batch, first)] = place.loader().run_once()
    assert first == Result.RETRY
    assert result(place.loader().load([batch], at_once=True)) == Result.LOADED
    confirmation = place.wal.confirmation(batch.name)
    assert confirmation is not None
    assert (confirmation.inserted, confirmation.duplicates) == (2, 0)
    assert place.ids() == ["a", "b"]


def test_a_crash_between_commit_and_confirm_is_a_no_op_later(place: Place) -> None:
    place.commit(source_rows(["a"]))
    with failpoints.active("loader.after_commit", "raise"):
        [(batch, first)] = place.loader().run_once()
    assert first == Result.RETRY
    assert result(place.loader().load([batch], at_once=True)) == Result.ALREADY
    assert place.ids() == ["a"]


def test_the_ledger_and_not_the_lease_keeps_a_batch_from_going_in_twice(place: Place) -> None:
    """A holder that lost its lease in the middle of its work, and another that loads meanwhile."""
    batch = place.commit(source_rows(["a", "b"]))
    slow, quick = place.loader("slow"), place.loader("quick")
    results = []

    def overtaken() -> None:
        failpoints.deactivate("loader.after_lease")
        place.clock.advance(minutes=3)
        results.append(result(quick.load([batch])))

    with failpoints.active("loader.after_lease", overtaken):
        results.append(result(slow.load([batch])))
    assert results == [Result.LOADED, Result.ALREADY]
    assert place.ids() == ["a", "b"]
    confirmation = place.wal.confirmation(batch.name)
    assert confirmation is not None
    assert confirmation.holder == "quick"


def test_a_batch_in_another_loaders_hands_is_left_alone(place: Place) -> None:
    batch = place.commit(source_rows(["a"]))
    assert place.wal.leases.claim(batch.name, "other") is not None
    assert result(place.loader().load([batch])) == Result.HELD
    place.clock.advance(minutes=2)
    assert result(place.loader().load([batch])) == Result.LOADED


def test_a_poison_record_is_isolated_and_its_batch_goes_in_without_it(tmp_path: Path) -> None:
    place = Place(tmp_path, tables=NUMBERS)
    ids = [f"e{number:03}" for number in range(200)]
    data = [b'{"total":"%b"}' % (b"x" if n in (7, 8, 150) else b"1") for n in range(200)]
    batch = place.commit(
        source_rows(ids[:100], data=data[:100]), source_rows(ids[100:], first=101, data=data[100:])
    )
    assert result(place.loader().load([batch])) == Result.LOADED
    assert place.ids() == [name for name in ids if name not in ("e007", "e008", "e150")]
    failures = {failure.id: failure for failure in place.wal.failures(batch.name)}
    assert sorted(failures) == ["e007", "e008", "e150"]
    assert {(each.layer, each.reason) for each in failures.values()} == {("duckdb_insert", "rejected")}
    assert "'x'" in (failures["e007"].error or "")
    confirmation = place.wal.confirmation(batch.name)
    assert confirmation is not None
    assert (confirmation.inserted, confirmation.failed) == (197, 3)


def test_permanent_errors_cost_one_attempt(place: Place) -> None:
    batch = place.commit(source_rows(["a", "b", "c"], data=[b"{}", b"{not json", b"\xff\x00"]))
    assert result(place.loader().load([batch])) == Result.LOADED
    failures = place.wal.failures(batch.name)
    assert {each.id: (each.reason, each.layer, each.attempts) for each in failures} == {
        "b": ("invalid", "validation", 1),
        "c": ("invalid", "validation", 1),
    }
    assert all(each.data is None for each in failures), "bytes that do not parse are wrapped"
    assert place.ids() == ["a"]


def test_an_outage_spends_time_and_loses_nothing(place: Place) -> None:
    """The seed's second scenario: retries with growing waits, then everything goes in."""
    batch = place.commit(source_rows(["a", "b"], data=[b"{}", b"\xff"]))
    waits = []
    with outage(place):
        for _ in range(9):
            assert result(place.loader().load([batch])) == Result.RETRY
            assert result(place.loader().load([batch])) == Result.WAITING
            last = place.wal.last_attempt(batch.name)
            assert last is not None
            assert (last.transient, last.error.partition(":")[0]) == (True, "Unavailable")
            waits.append((last.retry_at - last.failed_at).total_seconds())
            place.clock.now = last.retry_at
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert result(place.loader().load([batch])) == Result.LOADED
    assert place.ids() == ["a"]
    [entry, _] = entries(place.wal, batch.name)
    assert (entry.attempts, entry.confirmed) == (10, True)


def test_what_failed_is_dead_in_the_wal_while_the_warehouse_is_away(place: Place) -> None:
    """`failed_events` is in the database whose outage would fill it: the WAL has the record first."""
    with failpoints.active("loader.before_commit", "raise"):
        batch = place.commit(source_rows(["a", "b"], data=[b"{}", b"\xff"]))
        assert result(place.loader().load([batch])) == Result.RETRY
    [failure] = place.wal.failures(batch.name)
    assert failure.id == "b"
    service = FailedEvents(place.wal, place.warehouse, place.tables)
    assert [event.event_id for event in service.find()] == ["b"]
    assert place.warehouse.failed() == []
    assert service.mirror() == 1
    assert [event.event_id for event in place.warehouse.failed()] == ["b"]


def test_an_outage_of_any_length_neither_expires_nor_exhausts_a_batch(place: Place) -> None:
    """Only a warehouse that answers can say that it does not have a batch: till then the batch waits."""
    batch = place.commit(source_rows(["a"]))
    with outage(place):
        place.clock.advance(days=8)
        assert result(place.loader().load([batch], at_once=True)) == Result.RETRY
    assert place.wal.gave_up(batch.name) is None


def test_expiry_is_a_transition_with_a_record(place: Place) -> None:
    batch = place.commit(source_rows(["a", "b"]))
    place.clock.advance(hours=168)
    assert result(place.loader().load([batch])) == Result.EXPIRED
    assert place.wal.pending() == []
    assert status(place.wal, batch.name).state == "failed"
    assert [(e.failed_permanent, e.failure_reason) for e in entries(place.wal, batch.name)] == [
        (True, "expired")
    ] * 2
    FailedEvents(place.wal, place.warehouse, place.tables).mirror()
    found = place.warehouse.failed()
    assert sorted((e.event_id, e.failure_reason, e.failure_layer) for e in found) == [
        ("a", "expired", "consumer_wal"),
        ("b", "expired", "consumer_wal"),
    ]
    place.clock.advance(days=365)
    WalUpkeep(place.wal).run_once()
    assert len(list(entries(place.wal, batch.name))) == 2, "no storage time limit removes what was not loaded"


def test_a_batch_that_is_in_the_warehouse_cannot_expire(place: Place) -> None:
    batch = place.commit(source_rows(["a"]))
    with failpoints.active("loader.after_commit", "raise"):
        result(place.loader().load([batch]))
    place.clock.advance(hours=200)
    assert result(place.loader().load([batch])) == Result.ALREADY
    assert place.wal.gave_up(batch.name) is None


def test_a_loader_that_is_late_cannot_load_what_another_gave_up(place: Place) -> None:
    batch = place.commit(source_rows(["a"]))
    results = []

    def give_up_meanwhile() -> None:
        failpoints.deactivate("loader.after_lease")
        place.clock.advance(hours=200)
        results.append(result(place.loader("other").load([batch])))

    with failpoints.active("loader.after_lease", give_up_meanwhile):
        results.append(result(place.loader("late").load([batch])))
    assert results == [Result.EXPIRED, Result.EXPIRED]
    rows = segments.read_all(place.wal.store, batch.segments)
    assert load(place.warehouse, batch.name, rows).refused == "expired"
    assert place.ids() == []


def test_a_hundred_attempts_are_the_end(tmp_path: Path) -> None:
    place = Place(tmp_path, max_retries=3)
    batch = place.commit(source_rows(["a"]))
    with failpoints.active("loader.before_commit", "raise"):
        for _ in range(3):
            assert result(place.loader().load([batch], at_once=True)) == Result.RETRY
    place.clock.advance(minutes=6)
    assert result(place.loader().load([batch])) == Result.FAILED
    FailedEvents(place.wal, place.warehouse, place.tables).mirror()
    [event] = place.warehouse.failed()
    assert (event.failure_reason, event.max_retries_exceeded) == ("max_retries_exceeded", True)
    assert "failpoint" in (event.last_error or "")


def test_a_batch_that_kills_its_loader_is_not_tried_for_ever(tmp_path: Path) -> None:
    """No attempt of it ends, so none leaves a record: the leases count."""
    place = Place(tmp_path, max_retries=3)
    batch = place.commit(source_rows(["a"]))
    for _ in range(3):
        assert place.wal.leases.claim(batch.name, "dies") is not None
        place.clock.advance(minutes=2)
    assert result(place.loader().load([batch])) == Result.FAILED


def test_a_start_accounts_for_every_entry_it_finds(place: Place) -> None:
    committed = place.commit(source_rows(["a", "b"]))
    with failpoints.active("loader.after_commit", "raise"):
        result(place.loader().load([committed]))
    damaged = place.commit(source_rows(["c"], first=3))
    place.path_of(damaged.segments[0].name).unlink()
    held = place.commit(source_rows(["d"], first=4))
    place.clock.advance(hours=168)
    place.wal.leases.claim(held.name, "other")
    fresh = place.commit(source_rows(["e", "f", "g"], first=5))
    expired = place.commit(source_rows(["h"], first=8))
    journal = place.wal.records
    body = journal.read(f"pending/{expired.name}") | {"created_at": "2026-01-01T00:00:00+00:00"}
    journal.remove(f"pending/{expired.name}")
    journal.add(f"pending/{expired.name}", body)

    found = place.loader().recover()
    assert found.duration > timedelta(0)
    found.duration = timedelta(0)
    # What is damaged had also expired: nobody reads it before it fails.
    assert found == Recovery(pending=8, already_committed=2, recovered=3, expired=2, failed=0, skipped=1)
    assert place.wal.confirmation(fresh.name) is not None


def test_a_lost_warehouse_is_rebuilt_from_the_wal(place: Place) -> None:
    place.commit(source_rows(["a", "b", "x"], data=[b"1", b"2", b"\xff"]))
    place.commit(source_rows(["c"], first=4))
    place.loader().run_once()
    place.warehouse.close()
    place.file.unlink()
    fresh = DuckWarehouse(place.file, place.tables)
    failed = FailedEvents(place.wal, fresh, place.tables)
    rebuilt = reload_confirmed(place.wal, fresh, failed)
    fresh.close()
    assert rebuilt == 2
    held, wanted = balance(place)
    assert held == wanted
    assert place.ids() == ["a", "b", "c"]
    assert reload_confirmed(place.wal, fresh, failed) == 2, "again changes nothing"
    fresh.close()
    assert place.ids() == ["a", "b", "c"]
    assert [event.event_id for event in fresh.failed()] == ["x"]
    fresh.close()


def test_rows_that_were_there_before_stay_the_only_ones(place: Place) -> None:
    """A rebuild into a warehouse that still has some of them."""
    place.commit(source_rows(["a"]))
    place.commit(source_rows(["b"], first=2))
    place.loader().run_once()
    place.warehouse.close()
    with duckdb.connect(str(place.file)) as connection:
        connection.execute("DELETE FROM holdfast_ledger")
        connection.execute("DELETE FROM events WHERE id = 'b'")
    reload_confirmed(place.wal, place.warehouse, FailedEvents(place.wal, place.warehouse, place.tables))
    assert place.ids() == ["a", "b"]
    assert place.query("SELECT transaction_id FROM events WHERE id = 'a'") == [
        (transaction_id("orders", "default", "a"),)
    ]
    assert place.query("SELECT position FROM events WHERE id = 'b'") == [(position(2),)]
