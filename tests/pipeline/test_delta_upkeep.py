"""Upkeep of Delta tables: few files, the same rows, whatever is loaded or killed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from test_wal_warehouse import rows
from walkit import CHANNEL, START, Place, position
from walkit import load as load_rows

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import LockLost
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.upkeep import CompactionSettings, Upkeep, UpkeepCounts
from holdfast.pipeline.warehouse import FailedEvent, LoadOutcome, Tables, delta_upkeep
from holdfast.pipeline.warehouse.contract import upkeep_of
from holdfast.pipeline.warehouse.delta_files import DeltaFiles, live_files
from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep, chosen

MIB, FEW = 1 << 20, 3
LATER = START + timedelta(days=3)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, warehouse=f"delta://{tmp_path}/tables")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that some loads are enough."""
    monkeypatch.setattr(delta_upkeep, "FEW", FEW)


def load(place: Place, number: int, *ids: str, **row: object) -> LoadOutcome:
    first = 100 * number + 1
    key = f"batch-{first}"
    return load_rows(place.other(Tables()), key, rows(list(ids), first=first, **row))


def upkeep(place: Place, keep: timedelta = timedelta(0)) -> TableUpkeep:
    folder = f"{place.folder}/tables"
    return TableUpkeep(DeltaFiles(folder), open_store(folder), "events", 64 * MIB, keep)


def finish(place: Place, now: datetime = START) -> UpkeepCounts:
    total, done = UpkeepCounts(), UpkeepCounts(1)
    while done.merged or done.indexed:
        done = upkeep(place).step(now)
        total = total.plus(done)
    return total


def files(place: Place) -> pa.Table:
    return live_files(DeltaTable(place.folder / "tables" / "events"))


def days(place: Place) -> list[date | None]:
    return sorted(files(place)["partition.event_day"].to_pylist(), key=str)


@pytest.mark.usefixtures("few")
def test_small_files_become_one_and_rows_are_still_found(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_upkeep, "UNCOVERED", 5)
    for number in range(5):
        load(place, number, f"a{number}", f"b{number}")
    before = sorted(place.query("SELECT * FROM events"))
    assert finish(place) == UpkeepCounts(5, 1, 1)
    assert files(place).num_rows == 1
    assert sorted(place.query("SELECT * FROM events")) == before
    assert load(place, 50, "a3", "b4", "new") == LoadOutcome(1, 2, ())
    assert load(place, 51, "a3", type="other") == LoadOutcome(0, 0, (f"{CHANNEL}@0@{position(5101)}",))


@pytest.mark.usefixtures("few")
def test_a_load_beside_a_merge_loses_nothing_and_both_come_through(place: Place) -> None:
    for number in range(FEW):
        load(place, number, f"a{number}")
    with failpoints.active("compact.before_commit", elsewhere(lambda: load(place, 20, "late", "a1"))):
        assert upkeep(place).step(START).merged == FEW
    assert place.ids() == sorted([*(f"a{number}" for number in range(FEW)), "late"])


@pytest.mark.usefixtures("few")
def test_a_merge_beside_a_load_makes_it_look_again(place: Place) -> None:
    for number in range(FEW):
        load(place, number, f"a{number}")
    with failpoints.active("loader.before_commit", elsewhere(lambda: upkeep(place).step(START))):
        assert load(place, 20, "late", "a1") == LoadOutcome(1, 1, ())
    assert place.ids() == sorted([*(f"a{number}" for number in range(FEW)), "late"])


@pytest.mark.usefixtures("few")
def test_of_two_merges_of_the_same_files_one_counts(place: Place) -> None:
    """deltalake itself would take both, and every row would be there twice."""
    for number in range(FEW):
        load(place, number, f"a{number}")
    with failpoints.active("compact.before_commit", elsewhere(lambda: upkeep(place).step(START))):
        assert upkeep(place).step(START).merged == 0
    assert place.ids() == [f"a{number}" for number in range(FEW)]
    assert files(place).num_rows == 1


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("point", ["delta.after_stage", "compact.before_commit", "compact.after_commit"])
def test_a_merge_that_is_cut_off_changes_no_row_and_leaves_what_is_removed(place: Place, point: str) -> None:
    for number in range(FEW):
        load(place, number, f"a{number}")
    with failpoints.active(point, "raise"), pytest.raises(FailpointError):
        upkeep(place).step(START)
    assert place.ids() == [f"a{number}" for number in range(FEW)]
    finish(place)
    upkeep(place).clean(datetime.now(UTC))
    assert place.ids() == [f"a{number}" for number in range(FEW)]
    there = (place.folder / "tables" / "events").glob("*/*.parquet")
    assert [str(path) for path in there] == [
        str(place.folder / "tables" / "events" / name) for name in files(place)["path"].to_pylist()
    ]


@pytest.mark.usefixtures("few")
def test_what_was_replaced_stays_for_a_while(place: Place) -> None:
    for number in range(FEW):
        load(place, number, f"a{number}")
    finish(place)
    assert upkeep(place, timedelta(days=1)).clean(datetime.now(UTC)) == UpkeepCounts()
    before = DeltaTable(place.folder / "tables" / "events", version=FEW)
    assert before.to_pyarrow_table().num_rows == FEW
    assert upkeep(place).clean(datetime.now(UTC)) == UpkeepCounts(removed=FEW)


@pytest.mark.usefixtures("few")
def test_a_clean_that_is_cut_off_goes_on(place: Place) -> None:
    for number in range(FEW):
        load(place, number, f"a{number}")
    finish(place)
    with failpoints.active("compact.mid_clean", "raise"), pytest.raises(FailpointError):
        upkeep(place).clean(datetime.now(UTC))
    assert upkeep(place).clean(datetime.now(UTC)) == UpkeepCounts(removed=FEW - 1)
    assert place.ids() == [f"a{number}" for number in range(FEW)]


@pytest.mark.usefixtures("few")
def test_a_checkpoint_keeps_the_log_short(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_upkeep, "CHECKPOINT", 3)
    for number in range(4):
        load(place, number, f"a{number}")
    assert upkeep(place).files.last_checkpoint("events") == -1
    upkeep(place).step(START)
    assert upkeep(place).files.last_checkpoint("events") == 4
    assert place.ids() == [f"a{number}" for number in range(4)]


@pytest.mark.usefixtures("few")
@pytest.mark.usefixtures("few")
def test_failed_events_are_merged_beside_one_that_is_written(place: Place) -> None:
    """A merge of deltalake's that meets it begins anew: with its own retries there would be two of an id."""
    for number in range(FEW):
        place.warehouse.put_failed([failed(number)])
    files = DeltaFiles(f"{place.folder}/tables")
    [task] = upkeep_of(place.url, 64 * MIB, timedelta(0))
    changed = replace(failed(1), status="resolved")
    with failpoints.active(
        "compact.before_commit", elsewhere(lambda: place.other(Tables()).put_failed([changed]))
    ):
        task.step(START)
    while any(task.step(START)):
        pass
    table = files.find("failed_events")
    assert table is not None
    assert live_files(table).num_rows <= 2
    found = {each.id: each.status for each in place.warehouse.failed()}
    assert found == {failed(number).id: "resolved" if number == 1 else "pending" for number in range(FEW)}
    assert len(place.warehouse.failed()) == FEW


@pytest.mark.usefixtures("few")
def test_a_table_in_which_deltalake_deleted_rows_is_still_merged_read_and_sifted(place: Place) -> None:
    """It writes text as views, with which Arrow can hardly compute."""
    for number in range(FEW):
        load(place, number, f"a{number}", f"b{number}")
    DeltaTable(place.folder / "tables" / "events").delete("id = 'b1'")
    assert [row.id for row in place.warehouse.find("a1", [CHANNEL])] == ["a1"]
    assert load(place, 10, "a1", "b1", "a2") == LoadOutcome(1, 2, ())
    finish(place)
    assert [row.id for row in place.warehouse.find("b1", [CHANNEL])] == ["b1"]
    assert load(place, 11, "a1", "b1", "a2") == LoadOutcome(0, 3, ())
    again = rows(["a1"], first=101)
    assert place.warehouse.replace("batch", ChannelPartition(0, CHANNEL), [position(101)], again) == 1
    assert place.ids() == sorted(f"{letter}{number}" for letter in "ab" for number in range(FEW))


def test_the_ledger_forgets_keys_that_nobody_asks_for_any_more(place: Place) -> None:
    """Neither its objects nor the transactions in the table's log grow without end."""
    load(place, 1, "a", "b")
    table = DeltaTable(place.folder / "tables" / "events")
    assert table.metadata().configuration["delta.setTransactionRetentionDuration"] == "interval 30 days"
    now, ledger = datetime.now(UTC), place.folder / "tables" / "_holdfast" / "ledger"
    assert upkeep(place, timedelta(days=1)).clean(now + timedelta(days=30)).removed == 0
    assert load(place, 1, "a", "b") == LoadOutcome(2, 0, ())
    assert upkeep(place, timedelta(days=1)).clean(now + timedelta(days=32)).removed == 1
    assert list(ledger.iterdir()) == []


@pytest.mark.usefixtures("few")
def test_a_driver_merges_beside_its_work(place: Place) -> None:
    for number in range(FEW):
        load(place, number, f"a{number}")
    settings = CompactionSettings(every=timedelta(milliseconds=1))
    merged = threading.Event()
    with (
        failpoints.active("compact.after_commit", merged.set),
        Upkeep(
            lambda: upkeep_of(place.url, settings.file_size, settings.keep), settings, lambda: None
        ).beside(),
    ):
        assert merged.wait(30)
    assert files(place).num_rows == 1
    assert place.ids() == [f"a{number}" for number in range(FEW)]


@pytest.mark.usefixtures("few")
def test_whoever_has_lost_the_lock_merges_nothing(place: Place) -> None:
    def lost() -> None:
        raise LockLost("ingest", 1)

    for number in range(FEW):
        load(place, number, f"a{number}")
    settings = CompactionSettings()
    with pytest.raises(LockLost):
        Upkeep(lambda: upkeep_of(place.url, settings.file_size, settings.keep), settings, lost).run_once(
            START
        )
    assert files(place).num_rows == FEW


def failed(number: int) -> FailedEvent:
    id_ = str(UUID(int=number))
    texts = {field.name: "x" for field in fields(FailedEvent) if field.name not in ("id", "status")}
    times = dict.fromkeys(("failed_at", "last_retry_at", "resolved_at", "created_at", "updated_at"), START)
    rest = {"retry_count": 0, "partition": 0, "max_retries_exceeded": False, "event_payload": "{}"}
    return FailedEvent(**({"id": id_, "status": "pending"} | texts | times | rest))  # type: ignore[arg-type]


def test_late_events_of_many_days_share_a_file(place: Place) -> None:
    """Ninety of a day and one of each of ten others: two files, not eleven."""
    late = [START - timedelta(days=40 + number) for number in range(10)]
    load_at(place, 0, [START] * 90 + late)
    assert days(place) == [START.date(), None]


@pytest.mark.usefixtures("few")
def test_a_query_for_a_day_reads_that_day_and_what_has_none(place: Place) -> None:
    other = START - timedelta(days=1)
    load_at(place, 0, [START, START, other, other])
    load_at(place, 1, [START] * 9 + [other])
    assert days(place) == [other.date(), START.date(), START.date(), None]
    assert sum(found.num_rows for found in place.warehouse.events(CHANNEL, other.date())) == 3
    for path in (place.folder / "tables" / "events").glob(f"event_day={START.date()}/*"):
        path.unlink()  # whoever needs it fails
    assert sum(found.num_rows for found in place.warehouse.events(CHANNEL, other.date())) == 3


@pytest.mark.usefixtures("few")
def test_late_events_get_their_days_once_there_are_enough(place: Place) -> None:
    other = START - timedelta(days=9)
    for number in range(FEW):
        load_at(place, number, [START] * 9 + [other])
    assert days(place) == [START.date()] * FEW + [None] * FEW
    finish(place)
    assert days(place) == [other.date(), START.date()]
    assert len(place.ids()) == 10 * FEW


def test_files_of_a_day_at_fifty_events_a_second_are_few() -> None:
    """A day of loads every five seconds, each of some 30 kB, with upkeep every minute."""
    day = Day()
    most = 0
    for minute in range(24 * 60):
        for number in range(12):
            day.add(f"{minute}-{number}", 30_000, 250)
        day.merge(START)
        most = max(most, sum(1 for each in day.files if each["size_bytes"] < 32 * MIB))
    rows = 24 * 60 * 12 * 250
    assert most <= 20
    assert sum(each["num_records"] for each in day.files) == rows
    assert day.rewritten < 6 * rows, "a row is rewritten a few times"
    day.merge(LATER)
    assert len(day.files) <= 12, "half a gigabyte in files of at most 64 MiB"


class Day:
    """The files of a day, as the log describes them."""

    def __init__(self) -> None:
        self.files: list[Mapping[str, Any]] = []
        self.rewritten = 0

    def add(self, name: str, size: int, count: int) -> None:
        day = {"partition.event_day": START.date()}
        self.files.append({"path": name, "size_bytes": size, "num_records": count} | day)

    def merge(self, now: datetime) -> None:
        while group := chosen(self.files, now.date(), 64 * MIB):
            for each in group:
                self.files.remove(each)
            rows = sum(each["num_records"] for each in group)
            self.add(f"{len(self.files)}m{self.rewritten}", sum(each["size_bytes"] for each in group), rows)
            self.rewritten += rows


def load_at(place: Place, number: int, times: list[datetime]) -> None:
    """Events with these times."""
    ids = [f"e{number}-{place}" for place in range(len(times))]
    first = 100 * number + 1
    key = f"batch-{first}"
    given = rows(ids, first=first)
    column = pa.array(times, given.schema.field("time").type)
    load_rows(place.warehouse, key, given.set_column(given.schema.get_field_index("time"), "time", column))


def elsewhere(act: Callable[[], object]) -> Callable[[], None]:
    """Do it once, in a thread of its own, as another process would."""
    done: list[bool] = []

    def run() -> None:
        if not done:
            done.append(True)
            thread = threading.Thread(target=act)
            thread.start()
            thread.join()

    return run
