"""Delta as a warehouse: two writers at once, entries that were prepared for nothing, and S3."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from test_wal_warehouse import KEY, OTHER, rows
from walkit import CHANNEL, Place, balance, load, name, position, result, source_rows

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.warehouse import Column, LoadOutcome, Table, Tables, Warehouse, open_warehouse


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, warehouse=f"delta://{tmp_path}/tables")


def once(act: Callable[[], object]) -> Callable[[], None]:
    """Do it the first time only, in a thread of its own: whoever runs into it does so, too."""
    done: list[bool] = []

    def run() -> None:
        if not done:
            done.append(True)
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

    return run


def race(first: Warehouse, second: Callable[[], object], key: str = KEY) -> LoadOutcome:
    """A load during whose commit another one is made."""
    with failpoints.active("loader.before_commit", once(second)):
        return load(first, key, rows(["a", "b"]))


def test_a_writer_that_is_late_finds_the_rows_of_the_one_that_was_faster(place: Place) -> None:
    other = place.other(Tables())
    outcome = race(place.warehouse, lambda: load(other, OTHER, rows(["a", "c"], first=10)))
    assert outcome == LoadOutcome(1, 1, ())
    assert place.ids() == ["a", "b", "c"]


@pytest.mark.concurrency
def test_two_writers_of_one_batch_load_it_once_and_agree(place: Place) -> None:
    other, answers = place.other(Tables()), list[LoadOutcome]()
    outcome = race(place.warehouse, lambda: answers.append(load(other, KEY, rows(["a", "b"]))))
    assert answers == [outcome] == [LoadOutcome(2, 0, ())]
    assert place.ids() == ["a", "b"]


def test_a_batch_that_was_refused_meanwhile_does_not_go_in(place: Place) -> None:
    other = place.other(Tables())
    assert race(place.warehouse, lambda: other.refuse(KEY, [CHANNEL], "expired")).refused == "expired"
    assert place.ids() == []


def test_an_entry_that_was_prepared_for_nothing_does_no_harm(place: Place) -> None:
    for _ in range(2):
        with failpoints.active("loader.before_commit", "raise"), pytest.raises(FailpointError):
            load(place.warehouse, KEY, rows(["a", "b", "c"]))
    assert place.warehouse.outcome(KEY, [CHANNEL]) is None
    assert load(place.warehouse, KEY, rows(["a"])) == LoadOutcome(1, 0, ())
    assert place.other(Tables()).outcome(KEY, [CHANNEL]) == LoadOutcome(1, 0, ())


def test_rows_and_ledger_are_one_commit(place: Place) -> None:
    load(place.warehouse, KEY, rows(["a"]))
    table = DeltaTable(place.folder / "tables" / "events")
    number = table.transaction_version(KEY)
    assert table.version() == 1, "version 0 made the table"
    assert (place.folder / "tables" / "_holdfast" / "ledger" / f"{number:019}.json").exists()
    assert table.to_pyarrow_table().num_rows == 1


def test_duplicates_are_found_in_whichever_file_they_are(place: Place) -> None:
    """Ten commits make ten files, with columns that came later in some of them."""
    for number in range(10):
        key = f"batch-{number}"
        grown = (
            Tables({CHANNEL: Table("events", (Column("n", "$.n", "integer"),))}) if number > 4 else Tables()
        )
        load(place.other(grown), key, rows([f"e{number}", f"f{number}"], first=10 * number))
    again = rows(["e3", "f7", "new"], b'{"id": "e3"}', b'{"id": "other"}', b"{}", first=200)
    key = "batch-200"
    assert load(place.warehouse, key, again) == LoadOutcome(1, 1, (name(again, 1),))
    assert len(place.ids()) == 21


def test_what_a_load_has_answered_is_on_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where whoever committed it died before it was: the one who finds it sees to it."""
    synced: set[int] = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        real(descriptor)

    def unsynced() -> list[str]:
        table = place.folder / "tables" / "events"
        files = [
            *table.glob("*/*.parquet"),
            *table.glob("event_day=*"),
            *(table / "_delta_log").glob("*.json"),
            table,
            table / "_delta_log",
        ]
        assert len(files) > 3
        return [str(each) for each in files if each.stat().st_ino not in synced]

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        load(place.warehouse, KEY, rows(["a"]))
        assert unsynced() == []
        synced.clear()
        assert place.other(Tables()).outcome(KEY, [CHANNEL]) == LoadOutcome(1, 0, ())
        assert unsynced() == []
        load(place.warehouse, "batch-2", rows(["b"], b'{"n": 1}', first=2))  # with a commit for the column
        assert len(DeltaTable(place.folder / "tables" / "events").history()) == 4
        assert unsynced() == []


def test_a_loader_recovers_from_a_crash_after_the_commit(place: Place) -> None:
    batch = place.commit(source_rows(["a", "b"]))
    with failpoints.active("loader.after_commit", "raise"):
        assert result(place.loader().load([batch])) == Result.RETRY
    assert result(place.loader().load([batch], at_once=True)) == Result.ALREADY
    held, wanted = balance(place)
    assert held == wanted


def test_an_unreachable_warehouse_is_tried_again(place: Place) -> None:
    blocker = place.folder / "tables"
    blocker.write_text("no folder")
    batch = place.commit(source_rows(["a"]))
    assert result(place.loader().load([batch])) == Result.RETRY
    blocker.unlink()
    assert result(place.loader().load([batch], at_once=True)) == Result.LOADED
    assert place.ids() == ["a"]


def test_the_same_on_s3(aws: None, tmp_path: Path) -> None:
    url = f"delta+s3://bucket/{tmp_path.name}"
    open_store(f"s3://bucket/{tmp_path.name}").put(
        "made", b""
    )  # this server makes a bucket with its first object
    one, other = open_warehouse(url, Tables()), open_warehouse(url, Tables())
    outcome = race(one, lambda: load(other, OTHER, rows(["a", "c"], first=10)))
    assert outcome == LoadOutcome(1, 1, ())
    assert load(one, KEY, rows(["a", "b"])) == outcome
    found = pa.Table.from_batches(one.events(CHANNEL))
    assert sorted(found["id"].to_pylist()) == ["a", "b", "c"]
    [row] = other.find("c", [CHANNEL])
    assert (row.position, row.batch) == (position(11), OTHER)
    assert one.holds(CHANNEL, found["transaction_id"].to_pylist()) == set(found["transaction_id"].to_pylist())
