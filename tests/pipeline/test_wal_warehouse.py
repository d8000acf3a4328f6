"""Warehouses: rows and ledger in one transaction, replays, conflicts, columns, failed events."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from walkit import CHANNEL, Place, load, name, position, result, source_rows

from holdfast import failpoints
from holdfast.failpoints import FailpointError
from holdfast.model.errors import InvalidInput, Terminal, Unavailable
from holdfast.pipeline.ingest.validation import ValidationRule, ValidationRules, to_segment_rows
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.query import QueryLimits, run_query
from holdfast.pipeline.warehouse import Column, Load, LoadOutcome, Table, Tables, open_warehouse

KEY, OTHER = "batch-1", "batch-2"
Make = Callable[..., Place]
TOTAL = Column("total", "$.total", "integer")
NUMBERS = Tables({"orders": Table("orders", (TOTAL,))})


@pytest.fixture(params=["duckdb", "delta"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A place with either kind of warehouse."""
    urls = {"duckdb": f"duckdb://{tmp_path}/warehouse.duckdb", "delta": f"delta://{tmp_path}/tables"}
    return partial(Place, tmp_path, warehouse=urls[request.param])


@pytest.fixture
def place(make: Make) -> Place:
    return make()


def rows(ids: list[str], *data: bytes, **more: object) -> pa.Table:
    found = source_rows(ids, data=data or None, **more)  # type: ignore[arg-type]
    return to_segment_rows(
        pa.Table.from_batches([found]), ValidationRules({">": ValidationRule(payload="any")})
    )


def test_rows_have_the_columns_of_the_source_and_their_own(place: Place) -> None:
    before = datetime.now(UTC)
    row = rows(["a"], b'{"x":1}', headers=[("b", "2"), ("a", "1")], key="k")
    assert load(place.warehouse, KEY, row) == LoadOutcome(1, 0, ())
    [found] = place.query("SELECT * EXCLUDE (time, ingested_at, transaction_hash) FROM events")
    assert found == (
        *("orders", 0, position(1), "a", "default", "event", "k", '{"a":"1","b":"2"}', '{"x":1}', None),
        *(rows(["a"])["transaction_id"][0].as_py(), KEY, 1),
    )
    assert place.query(f"SELECT count(*) FROM events WHERE ingested_at >= '{before}'") == [(1,)]


def test_bytes_that_are_no_json_are_wrapped(place: Place) -> None:
    load(place.warehouse, KEY, rows(["a", "b"], b"\x00\xff", b'"\\u0000"'))
    found = place.query("SELECT data, data_base64 FROM events ORDER BY id")
    assert found == [(None, "AP8="), ('"\\u0000"', None)]


def test_a_replay_changes_nothing_and_answers_the_same(place: Place) -> None:
    first = load(place.warehouse, KEY, rows(["a", "b"]))
    for _ in range(2):
        assert load(place.warehouse, KEY, rows(["a", "b", "c"])) == first
        place.warehouse.close()
    assert place.ids() == ["a", "b"]
    assert place.warehouse.outcome(KEY, [CHANNEL]) == first
    assert place.warehouse.outcome(OTHER, [CHANNEL]) is None


def test_the_same_content_is_a_duplicate_and_other_content_a_conflict(place: Place) -> None:
    load(place.warehouse, KEY, rows(["a", "b", "c"]))
    again = rows(["a", "b", "c", "d"], b'{"id": "a"}', b'{"id": "changed"}', b'{"id": "c"}', b"{}", first=10)
    assert load(place.warehouse, OTHER, again) == LoadOutcome(1, 2, (name(again, 1),))
    assert place.ids() == ["a", "b", "c", "d"]
    assert place.query("SELECT data FROM events WHERE id = 'b'") == [('{"id": "b"}',)]


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"type": "x"}, 0),
        ({"key": "k"}, 0),
        ({"time": datetime(2026, 1, 1, tzinfo=UTC)}, 1),
        ({"headers": [("h", "1")]}, 1),
    ],
)
def test_content_is_type_key_and_data(place: Place, changed: dict[str, object], same: int) -> None:
    load(place.warehouse, KEY, rows(["a"]))
    assert load(place.warehouse, OTHER, rows(["a"], first=2, **changed)).duplicates == same


def test_rivals_inside_one_batch_are_told_apart(place: Place) -> None:
    twice = rows(["a", "a", "a", "b"], b"1", b"1", b"2", b"3")
    assert load(place.warehouse, KEY, twice) == LoadOutcome(2, 1, (name(twice, 2),))
    assert place.query("SELECT id, data FROM events ORDER BY id") == [("a", "1"), ("b", "3")]


def of_channel(channel: str, ids: list[str], *data: bytes, first: int = 1) -> pa.Table:
    found = source_rows(ids, channel=channel, data=data or None, first=first)
    return to_segment_rows(pa.Table.from_batches([found]), ValidationRules())


def test_many_loads_go_in_together_and_each_has_its_outcome(place: Place) -> None:
    """Of an event that two of them have, the first one's row is the one that counts."""
    one, other = rows(["a", "b"]), of_channel("returns", ["a"])
    both = pa.concat_tables([rows(["b", "c"], b'{"id": "b"}', b'{"id": "c"}', first=5), other])
    rival = rows(["c", "d"], b'{"other": 1}', b"{}", first=9)
    known = load(place.warehouse, KEY, one)
    loads = [
        Load(OTHER, (CHANNEL, "returns"), both),
        Load(KEY, (CHANNEL,), rows(["never"], first=20)),
        Load("third", (CHANNEL,), rival),
    ]
    found = place.warehouse.load(loads)
    assert found == [LoadOutcome(2, 1, ()), known, LoadOutcome(1, 0, (name(rival, 0),))]
    assert place.warehouse.load(loads) == found
    assert place.ids() == ["a", "a", "b", "c", "d"]
    batches = place.query("SELECT channel, id, batch FROM events ORDER BY ALL")
    assert [each[2] for each in batches] == [KEY, KEY, OTHER, "third", OTHER]


def test_loads_of_several_tables_have_one_outcome(make: Make) -> None:
    place = make(tables=Tables({CHANNEL: Table("orders"), "returns": Table("returned")}))
    load(place.warehouse, "before", of_channel("returns", ["r"]))
    mixed = pa.concat_tables([rows(["a", "b"]), of_channel("returns", ["r", "s"], first=7)])
    assert load(place.warehouse, KEY, mixed) == LoadOutcome(2 + 1, 1, ())
    assert place.warehouse.outcome(KEY, [CHANNEL, "returns"]) == LoadOutcome(3, 1, ())
    assert (place.ids("orders"), place.ids("returned")) == (["a", "b"], ["r", "s"])
    assert place.warehouse.refuse(KEY, [CHANNEL, "returns"], "expired") == LoadOutcome(3, 1, ())


def test_one_row_that_does_not_fit_keeps_all_loads_out_of_all_tables(make: Make) -> None:
    tables = Tables({CHANNEL: Table("orders"), "returns": Table("returned", (TOTAL,))})
    place = make(tables=tables)
    good, bad = rows(["a"]), of_channel("returns", ["r"], b'{"total": "many"}')
    with pytest.raises(Terminal):
        place.warehouse.load([Load(KEY, (CHANNEL,), good), Load(OTHER, ("returns",), bad)])
    assert place.warehouse.outcome(KEY, [CHANNEL]) is None
    assert load(place.warehouse, KEY, good) == LoadOutcome(1, 0, ())


def test_a_load_without_rows_is_known_all_the_same(place: Place) -> None:
    empty = Load(KEY, (CHANNEL,), rows(["a"]).slice(1))
    assert place.warehouse.load([empty]) == [LoadOutcome(0, 0, ())]
    assert place.warehouse.refuse(KEY, [CHANNEL], "expired") == LoadOutcome(0, 0, ())


def test_equal_hashes_of_different_events_do_not_meet(place: Place) -> None:
    """The 64 bits only narrow the search: with all of them equal, the whole id still decides."""

    def collide(table: pa.Table) -> pa.Table:
        place_of = table.schema.get_field_index("transaction_hash")
        return table.set_column(place_of, "transaction_hash", pa.array([7] * table.num_rows, pa.int64()))

    load(place.warehouse, KEY, collide(rows(["a", "b"])))
    assert load(place.warehouse, OTHER, collide(rows(["b", "c"], first=10))) == LoadOutcome(1, 1, ())
    assert place.ids() == ["a", "b", "c"]


def test_the_same_id_from_another_source_or_channel_is_another_event(place: Place) -> None:
    load(place.warehouse, KEY, rows(["a"]))
    assert load(place.warehouse, OTHER, rows(["a"], b"1", first=2, source="other")).inserted == 1
    third = to_segment_rows(
        pa.Table.from_batches([source_rows(["a"], channel="x", data=[b"2"])]), ValidationRules()
    )
    assert load(place.warehouse, "third", third).inserted == 1


def test_parts_of_the_data_become_columns_with_types(make: Make) -> None:
    columns = (
        Column("name", "$.user.name"),
        Column("total", "$.total", "decimal(10,2)"),
        Column("count", "$.count", "integer"),
        Column("ratio", "$.ratio", "number"),
        Column("paid", "$.paid", "boolean"),
        Column("paid_at", "$.at", "time"),
        Column("day", "$.at", "date"),
        Column("items", "$.items", "json"),
    )
    place = make(tables=Tables({"orders": Table("orders", columns)}))
    data = (
        b'{"user":{"name":"A"},"total":"12.50","count":3,"ratio":0.5,"paid":true,'
        b'"at":"2026-01-02T03:04:05Z","items":[1,{"a":2}]}'
    )
    load(place.warehouse, KEY, rows(["a", "b", "c"], data, b"{}", b"\xff"))
    paid_at = "paid_at = '2026-01-02T03:04:05Z'::TIMESTAMPTZ"
    names = f"name, total::VARCHAR, count, ratio, paid, {paid_at}, day::VARCHAR, items"
    found = place.query(f"SELECT {names} FROM orders ORDER BY id")
    assert found == [
        ("A", "12.50", 3, 0.5, True, True, "2026-01-02", '[1,{"a":2}]'),
        (None,) * 8,
        (None,) * 8,
    ]


def test_a_new_column_is_added_and_old_rows_have_none(place: Place) -> None:
    load(place.warehouse, KEY, rows(["a"], b'{"total":1}'))
    place.warehouse.close()
    grown = Tables({">": Table("events", (Column("total", "$.total", "integer"),))})
    load(place.other(grown), OTHER, rows(["b"], b'{"total":2}', first=2))
    assert place.query("SELECT id, total FROM events ORDER BY id") == [("a", None), ("b", 2)]


def test_a_column_does_not_change_its_type(make: Make) -> None:
    place = make(tables=NUMBERS)
    load(place.warehouse, KEY, rows(["a"], b"{}"))
    place.warehouse.close()
    other = Tables({"orders": Table("orders", (Column("total", "$.total", "text"),))})
    with pytest.raises(InvalidInput, match=r"'total' of table 'orders' is (BIGINT|int64)"):
        load(place.other(other), OTHER, rows(["b"], first=2))


@pytest.mark.parametrize("value", ['"x"', "1.5", '"1.5"', "99999999999999999999", "[]"])
def test_a_value_that_its_type_cannot_hold_is_terminal_and_leaves_no_trace(make: Make, value: str) -> None:
    place = make(tables=NUMBERS)
    load(place.warehouse, OTHER, rows(["before"], b'{"total":0}', first=9))
    bad = rows(["a", "b"], b'{"total":1}', f'{{"total":{value}}}'.encode())
    with pytest.raises(Terminal):
        place.warehouse.rehearse(bad)
    with pytest.raises(Terminal):
        load(place.warehouse, KEY, bad)
    assert place.warehouse.outcome(KEY, [CHANNEL]) is None
    place.warehouse.rehearse(bad.slice(0, 1))
    assert place.ids("orders") == ["before"]


def test_rows_are_visible_all_or_none(place: Place) -> None:
    with failpoints.active("loader.before_commit", "raise"), pytest.raises(FailpointError):
        load(place.warehouse, KEY, rows(["a", "b"]))
    assert place.warehouse.outcome(KEY, [CHANNEL]) is None
    assert place.ids() == []
    assert load(place.warehouse, KEY, rows(["a", "b"])).inserted == 2


def test_what_was_refused_is_never_loaded_and_what_was_loaded_never_refused(place: Place) -> None:
    assert place.warehouse.refuse(KEY, [CHANNEL], "expired") == LoadOutcome(0, 0, (), "expired")
    assert load(place.warehouse, KEY, rows(["a"])).refused == "expired"
    load(place.warehouse, OTHER, rows(["b"]))
    assert place.warehouse.refuse(OTHER, [CHANNEL], "expired") == LoadOutcome(1, 0, ())
    assert place.ids() == ["b"]


@pytest.mark.concurrency
def test_two_loads_at_once_in_one_duckdb_cannot_miss_each_other(tmp_path: Path) -> None:
    """Of two that overlap one is turned away, and finds the other's rows when it comes again."""
    place = Place(tmp_path)
    second = place.other(Tables())
    seen: list[Exception] = []

    def intrude() -> None:
        try:
            load(second, OTHER, rows(["a"], first=2))
        except Unavailable as error:
            seen.append(error)

    thread = threading.Thread(target=intrude)

    def start_and_wait() -> None:
        thread.start()
        thread.join()

    with failpoints.active("loader.before_commit", start_and_wait):
        load(place.warehouse, KEY, rows(["a"]))
    assert len(seen) == 1
    assert load(second, OTHER, rows(["a"], first=2)) == LoadOutcome(0, 1, ())
    second.close()
    assert place.ids() == ["a"]


def test_another_process_waits_until_the_file_is_let_go_of(tmp_path: Path) -> None:
    place = Place(tmp_path)
    load(place.warehouse, KEY, rows(["a"]))
    program = (
        "import sys\n"
        "from holdfast.pipeline.warehouse import Tables, duck, open_warehouse\n"
        "duck.PATIENCE = float(sys.argv[3])\n"
        "print('asks', flush=True)\n"
        "print(open_warehouse(sys.argv[1], Tables()).outcome(sys.argv[2], ['orders']))"
    )
    command = [sys.executable, "-c", program, place.warehouse.url, KEY]
    refused = subprocess.run([*command, "0"], capture_output=True, text=True)
    assert refused.returncode == 1
    assert "Unavailable: duckdb://" in refused.stderr
    with subprocess.Popen([*command, "60"], stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "asks\n"
        place.warehouse.close()
        assert "inserted=1" in waiting.stdout.read()
    assert waiting.returncode == 0


@pytest.mark.parametrize(
    "text", ["reading the stream registered as", "Corrupt database file", "No such file or directory"]
)
def test_words_in_an_event_or_a_query_are_no_damage(make: Make, text: str) -> None:
    """An event that could say that a file is damaged would be tried for ever, before all others."""
    place = make(tables=Tables({">": Table("events", (TOTAL,))}))
    with pytest.raises(Terminal):
        load(place.warehouse, KEY, rows(["a"], b'{"total":"%s"}' % text.encode()))
    load(place.warehouse, OTHER, rows(["b"], b'{"total":1}'))
    place.warehouse.close()
    with pytest.raises(InvalidInput, match="Conversion"):
        asyncio.run(
            run_query(place.url, f"SELECT CAST('{text}' AS INTEGER) FROM events", QueryLimits(), audit=True)
        )


@pytest.mark.parametrize("how", ["changed", "cut", "gone"])
def test_a_damaged_file_is_named_with_what_to_do(place: Place, how: str) -> None:
    load(place.warehouse, KEY, rows(["a"]))
    place.warehouse.close()
    [file] = (
        [place.file] if place.url.startswith("duckdb:") else place.folder.glob("tables/events/*/*.parquet")
    )
    whole = file.read_bytes()
    match how:
        case "changed" if file == place.file:  # two headers say where everything is
            file.write_bytes(whole[:4096] + bytes(reversed(whole[4096:12288])) + whole[12288:])
        case "changed":
            file.write_bytes(whole[:-200] + bytes(reversed(whole[-200:-8])) + whole[-8:])
        case "cut":
            file.write_bytes(whole[:10])
        case "gone":
            file.unlink()
    if file == place.file and how == "gone":
        return  # a new one is made
    wanted = f"{place.url}: .*damaged or gone: .*holdfast warehouse rebuild"
    with pytest.raises(Unavailable, match=wanted):
        list(place.warehouse.events(CHANNEL))
    with pytest.raises(Unavailable, match="damaged or gone"):  # and no row has failed for good
        load(place.warehouse, OTHER, rows(["a"]))
    with pytest.raises(Unavailable, match=wanted):
        asyncio.run(run_query(place.url, "SELECT max(data) FROM events", QueryLimits(), audit=True))


@pytest.mark.parametrize("commit", ["of a batch", "of the table"])
@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_a_torn_commit_of_delta_is_named_and_goes(tmp_path: Path, commit: str, how: str) -> None:
    """As a power failure leaves it, before the batch is confirmed."""
    place = Place(tmp_path, warehouse=f"delta://{tmp_path}/tables")
    if commit == "of a batch":
        load(place.warehouse, KEY, rows(["a"]))
    batch = place.commit(source_rows(["b"], first=2))
    with failpoints.active("loader.after_commit", "raise"):
        assert result(place.loader().load([batch])) == Result.RETRY
    log = place.folder / "tables" / "events" / "_delta_log"
    if commit == "of the table":
        (log / f"{1:020}.json").unlink()
    torn = max(log.glob("*.json"))
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2] if how == "cut" else bytes(len(whole)))
    wanted = f"{torn} is torn.*remove this file.*holdfast reconcile"
    with pytest.raises(Unavailable, match=wanted):
        list(place.warehouse.events(CHANNEL))
    with pytest.raises(Unavailable, match=wanted):
        load(place.warehouse, OTHER, rows(["c"], first=3))
    with pytest.raises(Unavailable, match=wanted):
        asyncio.run(run_query(place.url, "SELECT max(data) FROM events", QueryLimits(), audit=True))
    torn.unlink()
    assert result(place.loader().load([batch], at_once=True)) == Result.LOADED
    assert place.ids() == (["a", "b"] if commit == "of a batch" else ["b"])


def test_a_torn_commit_of_delta_that_others_follow_does_not_go(tmp_path: Path) -> None:
    place = Place(tmp_path, warehouse=f"delta://{tmp_path}/tables")
    for key, event, first in (KEY, "a", 1), (OTHER, "b", 2):
        load(place.warehouse, key, rows([event], first=first))
    torn = place.folder / "tables" / "events" / "_delta_log" / f"{1:020}.json"
    torn.write_bytes(torn.read_bytes()[:100])
    with pytest.raises(Unavailable, match=f"{torn} is damaged: restore it, or .*holdfast warehouse rebuild"):
        list(place.warehouse.events(CHANNEL))


def test_urls_lead_to_warehouses(tmp_path: Path) -> None:
    assert (
        open_warehouse(f"duckdb://{tmp_path}/a b.duckdb", Tables()).url == f"duckdb://{tmp_path}/a b.duckdb"
    )
    for url in ("duckdb://", "sqlite:///x", "warehouse.duckdb"):
        with pytest.raises(InvalidInput):
            open_warehouse(url, Tables())


def digests(place: Place) -> dict[str, int]:
    found = pa.Table.from_batches(place.warehouse.events(CHANNEL))
    return dict(zip(found["id"].to_pylist(), found["digest"].to_pylist(), strict=True))


def test_a_row_whose_typed_columns_are_not_what_its_data_says_contradicts_itself(place: Place) -> None:
    """Rows from before a column, and values that do not fit its type, do not."""
    load(place.warehouse, KEY, rows(["a", "b"], b'{"n": 1}', b'{"n": 2, "t": "x"}'))
    later = [b'{"n": 1.5, "t": "y"}', b'{"n": 3}', b'{"n": "three"}', b'{"n": 4, "t": "z"}', b"[1]"]
    load(place.warehouse, OTHER, rows(["c", "d", "e", "f", "g"], *later, first=10))
    assert place.query("SELECT n__bigint, n__varchar FROM events ORDER BY id")[:2] == [(1, None), (2, None)]
    sound = digests(place)
    assert -1 not in sound.values()
    place.warehouse.close()
    for change, event in ("n__bigint = 9", "a"), ("n__varchar = NULL", "d"), ("t__varchar = 'q'", "f"):
        if place.url.startswith("duckdb:"):
            with duckdb.connect(str(place.file)) as connection:
                connection.execute(f"UPDATE events SET {change} WHERE id = '{event}'")
        else:
            column, _, value = change.partition(" = ")
            table = DeltaTable(f"{place.url.removeprefix('delta://')}/events")
            table.update(updates={column: value}, predicate=f"id = '{event}'")
    place.warehouse = open_warehouse(place.url, place.tables)
    found = digests(place)
    assert {event for event, digest in found.items() if digest == -1} == {"a", "d", "f"}
    assert {event: found[event] for event in "bceg"} == {event: sound[event] for event in "bceg"}
