"""Lines and objects: what goes in comes out, whatever it is."""

from __future__ import annotations

import base64
import gzip
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import ObjectConflict
from holdfast.model.log import Page
from holdfast.model.position import format_position
from holdfast.pipeline.archive import writer
from holdfast.pipeline.archive.lines import decode_lines, encode_lines, exact_data
from holdfast.pipeline.archive.objects import Written
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores.folder import FolderStore

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SPOT = ChannelPartition(0, "gbe.events.audit.change")


def position(number: int) -> str:
    return format_position(1, 0, number)


def micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def batch(*events: dict[str, Any], start: int = 0, spot: ChannelPartition = SPOT) -> pa.RecordBatch:
    defaults = {"id": "", "source": "default", "type": "event", "key": None, "time": NOON, "headers": {}}
    rows = [
        {"position": position(start + n), **defaults, "id": f"e-{start + n}", "data": b"{}"} | event
        for n, event in enumerate(events)
    ]
    columns = [[row[name] for row in rows] for name in ("position", "id", "source", "type", "key")]
    times = [micros(row["time"]) for row in rows]
    return to_batch(
        spot, Page(*columns, times, [row["headers"] for row in rows], [row["data"] for row in rows])
    )


def parsed(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in encode_lines(rows).to_pylist()]


def test_a_line_has_the_names_of_the_seed() -> None:
    time = datetime(2026, 2, 14, 23, 59, 0, 7, tzinfo=UTC)
    event = {"id": "m-1", "source": "web", "type": "order", "key": "k", "time": time, "data": b'{"n": 1.50}'}
    [text] = encode_lines(batch(event | {"headers": {"a": "b"}})).to_pylist()
    assert text == (
        b'{"message_id":"m-1","timestamp":"2026-02-14T23:59:00.000007Z","channel":"gbe.events.audit.change",'
        b'"position":"' + position(0).encode() + b'","source":"web","type":"order","key":"k",'
        b'"headers":{"a":"b"},"data":{"n": 1.50}}\n'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\x00",
        b"{",
        b"[1",
        b"1,2",
        b"NaN",
        b"1e999",
        b'"\\ud800"',
        b"[" * 2000 + b"]" * 2000,
        b"{}\n{}",
    ],
)
def test_data_that_is_no_json_is_kept_byte_for_byte(data: bytes) -> None:
    good, bad = parsed(batch({"data": b"[1]"}, {"data": data}))
    assert good["data"] == [1]
    assert base64.b64decode(bad["data_base64"]) == data
    assert "data" not in bad


def test_data_that_together_would_be_json_is_looked_at_one_by_one() -> None:
    rows = parsed(batch({"data": b"[1"}, {"data": b"2]"}, {"data": b"3,4"}))
    assert all("data_base64" in row for row in rows)


def test_data_over_several_lines_stays_on_one() -> None:
    [text] = encode_lines(batch({"data": b'{\r\n "a": "x\\ny"\n}'})).to_pylist()
    assert text.count(b"\n") == 1
    assert b"\r" not in text
    assert orjson.loads(text)["data"] == {"a": "x\ny"}
    assert base64.b64decode(orjson.loads(text)["data_base64"]) == b'{\r\n "a": "x\\ny"\n}'


def test_an_empty_batch_has_no_lines() -> None:
    assert encode_lines(batch({}).slice(0, 0)).to_pylist() == []


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
EVENTS = st.fixed_dictionaries(
    {
        "id": TEXT,
        "source": TEXT,
        "type": TEXT,
        "key": st.none() | TEXT,
        "headers": st.dictionaries(TEXT, TEXT, max_size=3),
        "time": st.datetimes(datetime(1900, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),  # noqa: DTZ001
        "data": st.binary(max_size=20) | VALUES.map(orjson.dumps),
    }
)


@given(st.lists(EVENTS, min_size=1, max_size=8), st.data())
def test_every_event_is_read_back_as_it_was(events: list[dict[str, Any]], draw: st.DataObject) -> None:
    begin = draw.draw(st.integers(0, len(events) - 1))
    rows = parsed(batch(*events).slice(begin))  # Spark's batches are slices, too
    assert len(rows) == len(events) - begin
    for row, event in zip(rows, events[begin:], strict=True):
        if "data_base64" in row:
            assert base64.b64decode(row["data_base64"]) == event["data"]
        else:
            assert row["data"] == orjson.loads(event["data"])
        for name, column in (
            ("message_id", "id"),
            ("source",) * 2,
            ("type",) * 2,
            ("key",) * 2,
            ("headers",) * 2,
        ):
            assert row[name] == event[column]
        assert datetime.fromisoformat(row["timestamp"]) == event["time"]


@given(st.lists(EVENTS, min_size=1, max_size=8))
def test_data_is_read_back_byte_for_byte(events: list[dict[str, Any]]) -> None:
    text = b"".join(encode_lines(batch(*events)).to_pylist())
    rows = decode_lines("an object", 3, text)
    assert [exact_data(row["data"], row["data_base64"]) for row in rows.to_pylist()] == [
        event["data"] for event in events
    ]
    assert rows["line"].to_pylist() == list(range(1, len(events) + 1))
    assert rows["headers"].to_pylist() == [list(event["headers"].items()) for event in events]


# objects


def write(
    store: FolderStore,
    batches: list[pa.RecordBatch],
    size: int = 10,
    floors: dict[ChannelPartition, str | None] | None = None,
) -> list[Written]:
    return list(ObjectWriter(store, size, floors or {}).write(batches))


def ids(store: FolderStore, written: list[Written]) -> list[list[str]]:
    texts = (gzip.decompress(store.get(each.object)) for each in written)
    return [[orjson.loads(line)["message_id"] for line in text.splitlines()] for text in texts]


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path)


def test_objects_end_at_the_batch_size_and_the_rest_is_one_more(folder: FolderStore) -> None:
    written = write(folder, [batch(*[{}] * 14), batch(*[{}] * 11, start=14)])
    assert [(each.rows, each.first, each.last) for each in written] == [
        (10, position(0), position(9)),
        (10, position(10), position(19)),
        (5, position(20), position(24)),
    ]
    assert ids(folder, written) == [[f"e-{n}" for n in range(a, b)] for a, b in ((0, 10), (10, 20), (20, 25))]
    assert all(folder.size(each.object) == each.bytes for each in written)


def test_one_minute_around_midnight_is_two_days(folder: FolderStore) -> None:
    late, early = datetime(2026, 2, 14, 23, 59, tzinfo=UTC), datetime(2026, 2, 15, 0, 1, tzinfo=UTC)
    old = datetime(1969, 12, 31, 23, tzinfo=UTC)
    written = write(folder, [batch({"time": late}, {"time": early}, {"time": late}, {"time": old})])
    days = {each.object.removeprefix("archive/audit/")[:10]: each for each in written}
    assert set(days) == {"2026/02/14", "2026/02/15", "1969/12/31"}
    assert ids(folder, [days["2026/02/14"]]) == [["e-0", "e-2"]]
    assert (days["2026/02/14"].first, days["2026/02/14"].last) == (position(0), position(2))


def test_channels_and_stores_are_kept_apart(folder: FolderStore) -> None:
    other = ChannelPartition(1, "gbe.events.auth.login")
    mixed = pa.Table.from_batches([batch({}, {}), batch({}, spot=other)]).combine_chunks().to_batches()[0]
    written = write(folder, [mixed, batch({}, start=2)])
    assert {(each.spot, each.rows) for each in written} == {(SPOT, 3), (other, 1)}


def test_what_is_archived_already_is_passed_over(folder: FolderStore) -> None:
    floors: dict[ChannelPartition, str | None] = {SPOT: position(4)}
    written = write(folder, [batch(*[{}] * 5), batch(*[{}] * 3, start=5)], floors=floors)
    assert ids(folder, written) == [["e-5", "e-6", "e-7"]]
    assert write(folder, [batch(*[{}] * 5)], floors=floors) == []


def test_the_same_rows_give_the_same_objects_however_they_arrive(folder: FolderStore) -> None:
    whole = batch(*[{"data": b'{"n":%d}' % n} for n in range(25)])
    once = write(folder, [whole])
    again = write(folder, [whole.slice(0, 3), whole.slice(3, 15), whole.slice(18)])
    assert once == again


def test_a_large_batch_is_taken_in_parts(folder: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LARGEST", 1000)
    assert [each.rows for each in write(folder, [batch(*[{}] * 25)])] == [10, 10, 5]


def test_another_compressor_is_no_conflict_and_other_lines_are(folder: FolderStore) -> None:
    [written] = write(folder, [batch({}, {})])
    text = gzip.decompress(folder.get(written.object))
    folder.delete(written.object)
    other = gzip.compress(text, mtime=7)
    folder.put(written.object, other)
    [again] = write(folder, [batch({}, {})])
    assert again.bytes == len(other)
    folder.delete(written.object)
    folder.put(written.object, gzip.compress(text.replace(b"e-0", b"x-0")))
    with pytest.raises(ObjectConflict):
        write(folder, [batch({}, {})])
