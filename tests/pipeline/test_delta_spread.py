"""Loads into Delta on executors: the same outcome as in place, and the driver reads no segment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import orjson
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from walkit import CHANNEL, Place, balance, result, source_rows

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import Unavailable
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.query import engine
from holdfast.pipeline.wal import segments
from holdfast.pipeline.wal.batch import Segment
from holdfast.pipeline.wal.segments import StoredRows
from holdfast.pipeline.warehouse import Column, Load, Table, Tables, loads, open_warehouse
from holdfast.pipeline.warehouse.loads import run_on_executors, task_shares

pytestmark = pytest.mark.timeout(600)  # the first of them waits for Spark to start
TABLES = Tables({CHANNEL: Table("events", (Column("total", "$.total", "integer"),))})


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every segment is large."""
    monkeypatch.setattr(loads, "TASK_BYTES", 1)


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession, small: None) -> Place:
    found = Place(tmp_path, warehouse=f"delta://{tmp_path}/tables", tables=TABLES)
    found.warehouse = open_warehouse(found.url, TABLES, run_on_executors(spark))
    return found


def parts(
    *ids: list[str], first: int = 1, data: Callable[[str], bytes] | None = None
) -> list[pa.RecordBatch]:
    """Rows that become a segment each."""
    found = []
    for each in ids:
        bodies = [data(name) for name in each] if data else None
        found.append(source_rows(each, first=first, data=bodies))
        first += len(each)
    return found


@pytest.mark.parametrize("ids", [[["a", "b"], ["c"], ["d", "e"]], [["a"]]], ids=["some", "one"])
def test_executors_read_the_segments_and_write_the_files(
    place: Place, monkeypatch: pytest.MonkeyPatch, ids: list[list[str]]
) -> None:
    batch = place.commit(*parts(*ids))

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("the driver reads a segment")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "read", refuse)
        assert result(place.loader().load([batch])) == Result.LOADED
    assert place.ids() == [each for part in ids for each in part]
    files = list((place.folder / "tables" / "events").glob("*/*.parquet"))
    assert len(files) == len(ids), "a file for each task"
    held, wanted = balance(place)
    assert held == wanted


def test_columns_are_learned_where_the_rows_are_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part has another type of a field; all rows have the columns, those of the first load, too."""
    bodies = {
        "a": {"size": 1},
        "b": {"size": 2.5, "city": "Ulm"},
        "c": {"size": None, "user": {"name": "Ann"}},
    }
    batch = place.commit(*parts(["a"], ["b"], ["c"], data=lambda name: orjson.dumps(bodies[name])))

    def refuse(*_: Any) -> NoReturn:
        raise AssertionError("the driver reads a segment")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "read", refuse)
        assert result(place.loader().load([batch])) == Result.LOADED
    with engine.opened(place.url) as connection:
        found = connection.execute(f'SELECT id, size, city, "user" FROM {CHANNEL} ORDER BY id').fetchall()
        assert found == [("a", 1.0, None, None), ("b", 2.5, "Ulm", None), ("c", None, None, {"name": "Ann"})]
        stored = connection.execute(
            "SELECT id, size__double, city__varchar FROM events ORDER BY id"
        ).fetchall()
        assert stored == [("a", 1.0, None), ("b", 2.5, "Ulm"), ("c", None, None)]
    files = list((place.folder / "tables" / "events").glob("*/*.parquet"))
    assert len(files) == 3, "those without the columns are removed"


def test_an_event_in_two_parts_goes_in_once(place: Place) -> None:
    first = place.commit(*parts(["a", "b"], ["c", "d"]))
    again = place.commit(*parts(["x", "b"], ["y", "x"], ["d", "z"], first=10))
    results = place.loader().load([first, again])
    assert [each for _, each in results] == [Result.LOADED, Result.LOADED]
    assert place.ids() == ["a", "b", "c", "d", "x", "y", "z"]
    held, wanted = balance(place)
    assert held == wanted


def test_what_is_wrong_with_some_rows_is_found_as_in_place(place: Place) -> None:
    """No JSON, no integer, and another content of an id that is there."""

    def data(name: str) -> bytes:
        return {"bytes": b"\xff", "text": b'{"total": "x"}'}.get(name, b'{"total": 1}')

    place.loader().load([place.commit(*parts(["a"], ["b"], data=data))])
    mixed = parts(["c", "bytes"], ["d", "text"], ["b"], first=10, data=data)
    mixed[2] = source_rows(["b"], first=14, data=[b'{"total": 2}'])
    batch = place.commit(*mixed)
    assert result(place.loader().load([batch])) == Result.LOADED
    assert place.ids() == ["a", "b", "c", "d"]
    reasons = {failure.id: failure.reason for failure in place.wal.failures(batch.name)}
    assert reasons == {"bytes": "invalid", "text": "rejected", "b": "conflict"}
    held, wanted = balance(place)
    assert held == wanted


def test_a_damaged_segment_quarantines_its_batch_and_no_other(place: Place) -> None:
    whole = place.commit(*parts(["a"], ["b"]))
    torn = place.commit(*parts(["c"], ["d"], first=10))
    file = place.folder / "wal" / torn.segments[1].name
    file.write_bytes(file.read_bytes()[:-9])
    results = {batch.name: each for batch, each in place.loader().load([whole, torn])}
    assert results == {whole.name: Result.LOADED, torn.name: Result.QUARANTINED}
    assert place.ids() == ["a", "b"]


def test_a_driver_that_dies_before_the_commit_leaves_only_files_that_nobody_sees(place: Place) -> None:
    batch = place.commit(*parts(["a"], ["b"]))
    with failpoints.active("loader.before_commit", "raise"), pytest.raises(FailpointError):
        place.warehouse.load(
            [Load(batch.name, batch.channels, StoredRows(place.wal.store.url, batch.segments))]
        )
    assert place.ids() == []
    assert result(place.loader().load([batch])) == Result.LOADED
    assert place.ids() == ["a", "b"]


@pytest.mark.usefixtures("small")
def test_a_job_that_fails_is_tried_again(tmp_path: Path) -> None:
    """As when executors are lost, again and again."""

    def lost(work: Any, parts: Any) -> NoReturn:
        raise Unavailable("Spark could not finish a load")

    place = Place(tmp_path, warehouse=f"delta://{tmp_path}/tables")
    batch = place.commit(*parts(["a"], ["b"]))
    place.warehouse = open_warehouse(place.url, Tables(), lost)
    assert result(place.loader().load([batch])) == Result.RETRY
    place.warehouse = open_warehouse(place.url, Tables())
    assert result(place.loader().load([batch], at_once=True)) == Result.LOADED
    assert place.ids() == ["a", "b"]


def test_shares_are_segments_by_size_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "TASK_BYTES", 10)
    held = [Segment(f"s{number}", "", 1, size) for number, size in enumerate((4, 4, 4, 30, 2, 2, 2, 2))]
    stored = [
        Load("one", (CHANNEL,), StoredRows("wal", tuple(held[:5]))),
        Load("two", (CHANNEL,), StoredRows("wal", tuple(held[5:]))),
    ]
    near = Load("near", (CHANNEL,), segments.SCHEMA.empty_table())
    found = task_shares([near, *stored])
    names = [
        [
            (load.key, [each.name for each in load.rows.segments])
            for load in part
            if isinstance(load.rows, StoredRows)
        ]
        for part in found
    ]
    assert names == [
        [("one", ["s0", "s1"])],
        [("one", ["s2"])],
        [("one", ["s3"])],
        [("one", ["s4"]), ("two", ["s5", "s6", "s7"])],
    ]
    assert [load.key for load in found[0]] == ["near", "one"]
    assert task_shares([]) == [[]]
