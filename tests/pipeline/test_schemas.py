"""Schemas of channels: learned from what arrives, widened, bounded, stored; and the views that show them."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from walkit import Place, source_rows

import holdfast
from holdfast.bus.schemas import Schemas
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.declared import DeclaredSchemas
from holdfast.pipeline.query import engine
from holdfast.pipeline.warehouse import Column, Table, Tables, schemas, structure
from holdfast.pipeline.warehouse.schemas import learn, view
from holdfast.pipeline.warehouse.structure import Structure, StructureLimiter, declared, widened

Put = Callable[..., None]


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("NULL", "BIGINT", "BIGINT"),
        ("BIGINT", "HUGEINT", "HUGEINT"),
        ("BIGINT", "DOUBLE", "DOUBLE"),
        ("HUGEINT", "DOUBLE", "DOUBLE"),
        ("DOUBLE", "VARCHAR", "VARCHAR"),
        ("BOOLEAN", "BIGINT", "VARCHAR"),
        ("TIMESTAMPTZ", "VARCHAR", "VARCHAR"),
        ("VARCHAR", {"a": "BIGINT"}, "JSON"),
        (["BIGINT"], "BIGINT", "JSON"),
        ("JSON", "BIGINT", "JSON"),
        (["NULL"], ["BIGINT"], ["BIGINT"]),
        ({"a": "BIGINT"}, {"b": "VARCHAR"}, {"a": "BIGINT", "b": "VARCHAR"}),
        ({"a": {"b": "BIGINT"}}, {"a": {"b": "DOUBLE"}}, {"a": {"b": "DOUBLE"}}),
    ],
)
def test_two_shapes_are_widened_to_one_that_holds_both(
    one: Structure, other: Structure, both: Structure
) -> None:
    assert widened(one, other) == both
    assert widened(other, one) == both or isinstance(both, dict)
    assert widened(both, one) == widened(both, other) == both  # what is wide stays wide


def rows(*documents: Any) -> pa.Table:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in documents]
    return pa.table({"channel": ["orders"] * len(texts), "data": pa.array(texts, pa.string())})


@pytest.mark.parametrize(
    ("documents", "learned"),
    [
        ([{"a": 1}, {"a": -1}], {"a": "BIGINT"}),
        ([{"a": 2**63 - 1}], {"a": "BIGINT"}),
        ([{"a": 2**63}], {"a": "HUGEINT"}),
        ([{"a": 1, "b": 2**64 - 1}], {"a": "BIGINT", "b": "HUGEINT"}),
        ([{"a": 2**70}], {"a": "DOUBLE"}),
        ([{"a": 1}, {"a": 1.5}], {"a": "DOUBLE"}),
        ([{"a": 1}, {"a": "x"}], {"a": "VARCHAR"}),
        ([{"a": 1}, {"a": {"b": 1}}], {"a": "JSON"}),
        ([{"a": None}], {"a": "NULL"}),
        ([{"a": {}}], {"a": "NULL"}),
        ([{"a": {}}, {"a": {"b": True}}], {"a": {"b": "BOOLEAN"}}),
        ([{"a": []}, {"a": [{"b": 1}]}], {"a": [{"b": "BIGINT"}]}),
        (['{"a": 1, "a": "x"}'], {"a": "VARCHAR"}),
        ([[1], 5, "text", None, {}], "NULL"),
        ([" \n{}", {"a": 1}, [1]], {"a": "BIGINT"}),
        ([], "NULL"),
    ],
)
def test_the_shape_of_data_is_learned(documents: list[Any], learned: Structure) -> None:
    assert learn([rows(*documents)]).get("orders", "NULL") == learned


def test_data_too_deep_for_duckdb_does_not_keep_the_rest_from_being_learned() -> None:
    deep = '{"a":' * 500 + "1" + "}" * 500
    assert learn([rows(deep, {"b": 1})]) == {"orders": {"b": "BIGINT"}}


def test_a_shape_is_bounded_in_number_depth_and_names() -> None:
    bounded = StructureLimiter()
    many = {f"f{number}": "BIGINT" for number in range(structure.FIELDS + 5)}
    assert len(bounded.cut(many)) == structure.FIELDS
    assert bounded.left_out == [f"f{structure.FIELDS + number}" for number in range(5)]
    deep: Structure = "BIGINT"
    for _ in range(10):
        deep = {"a": deep}
    assert StructureLimiter().cut(deep) == {"a": {"a": {"a": {"a": "JSON"}}}}
    bounded = StructureLimiter()
    odd = {"Total": "BIGINT", "total": "BIGINT", "": "BIGINT", "\n": "BIGINT", "x" * 129: "BIGINT"}
    assert bounded.cut(odd) == {"Total": "BIGINT"}
    assert len(bounded.left_out) == 4


def test_a_json_schema_declares_a_shape() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "at": {"type": "string", "format": "date-time"},
            "on": {"type": ["null", "string"], "format": "date"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "number"}]},
            "lines": {"type": "array", "items": {"$ref": "#/$defs/line"}},
            "tree": {"$ref": "#/$defs/tree"},
            "open": {},
            "nowhere": {"$ref": "#/$defs/none"},
        },
        "$defs": {
            "line": {"type": "object", "properties": {"price": {"type": "number"}}},
            "tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}},
        },
    }
    found = declared(schema)
    assert isinstance(found, dict)
    assert found | {"tree": 0} == {
        "id": "BIGINT",
        "at": "TIMESTAMPTZ",
        "on": "DATE",
        "either": "DOUBLE",
        "lines": [{"price": "DOUBLE"}],
        "tree": 0,
        "open": "NULL",
        "nowhere": "NULL",
    }


HOSTILE = [
    "it's",
    'a"b',
    "a.b",
    "a/b",
    "a~b",
    "a b",
    "$",
    "0",
    "ü",
    "select",
    "; DROP TABLE events; --",
    "%s",
    "{x}",
]


def test_hostile_names_are_columns_and_nothing_else() -> None:
    document = {name: number for number, name in enumerate(HOSTILE)}
    nested = {"o": document, **document}
    with duckdb.connect() as connection:
        columns = "''::VARCHAR AS " + ", ''::VARCHAR AS ".join(f'"{name}"' for name in engine.FIXED[:-1])
        connection.execute(f"CREATE TABLE events AS SELECT {columns}, '' AS batch")
        connection.execute(
            "UPDATE events SET channel = 'it''s', data = ?, headers = '{}'", [json.dumps(nested)]
        )
        learned = learn([rows(nested)])["orders"]
        assert isinstance(learned, dict)
        fields = {name: [each] for name, each in learned.items()}
        connection.execute(view('a"b', "events", "it's", fields))
        found = connection.execute('SELECT * FROM "a""b"')
        names = [each[0] for each in found.description]
        values = dict(zip(names, found.fetchall()[0], strict=True))
    assert {name: values[name] for name in HOSTILE} == document
    assert values["o"] == document


@pytest.fixture(params=["duckdb", "delta"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    urls = {"duckdb": f"duckdb://{tmp_path}/warehouse.duckdb", "delta": f"delta://{tmp_path}/tables"}
    return Place(tmp_path, warehouse=urls[request.param])


def put(place: Place, *documents: Any, first: int = 1, channel: str = "orders", **row: Any) -> None:
    data = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in documents]
    ids = [f"e{first + number}" for number in range(len(data))]
    place.commit(source_rows(ids, first=first, channel=channel, data=data, **row))
    assert {str(result) for _, result in place.loader().run_once(at_once=True)} == {"loaded"}
    place.warehouse.close()


def ask(place: Place, sql: str) -> list[tuple[Any, ...]]:
    with engine.opened(place.url) as connection:
        engine.lock(connection, 256 << 20)
        return connection.execute(sql).fetchall()


def test_a_channel_is_a_table_with_typed_columns(place: Place) -> None:
    put(place, {"total": 1, "user": {"name": "Ann"}, "tags": ["a"], "id": "x"}, headers=[("trace", "t-1")])
    put(place, {"total": 2.5, "user": {"age": 7}}, first=2)
    found = ask(place, "SELECT id, total, \"user\", tags, data_id, headers['trace'] FROM orders ORDER BY id")
    assert found == [
        ("e1", 1.0, {"name": "Ann", "age": None}, ["a"], "x", "t-1"),
        ("e2", 2.5, {"name": None, "age": 7}, None, None, None),
    ]


def columns_read(place: Place, sql: str) -> set[str]:
    """The words of a plan, the columns of its scans among them."""
    [(_, plan)] = ask(place, f"EXPLAIN {sql}")
    return set(re.findall(r"\w+", plan))


def test_fields_at_the_top_are_read_from_columns_of_their_own(place: Place) -> None:
    put(place, {"total": 1, "user": {"name": "Ann"}})
    put(place, {"total": 2.5}, first=2)
    assert columns_read(place, "SELECT sum(total) FROM orders") >= {"total__bigint", "total__double"}
    assert "data" not in columns_read(place, "SELECT sum(total) FROM orders")
    assert "data" in columns_read(place, 'SELECT "user" FROM orders')


def test_fields_beyond_the_columns_of_a_table_are_computed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "COLUMNS", 1)
    put(place, {"a": 1, "b": 2})
    put(place, {"a": 1.5, "c": True}, first=2)
    assert ask(place, "SELECT a, b, c FROM orders ORDER BY id") == [(1.0, 2, None), (1.5, None, True)]
    assert "data" in columns_read(place, "SELECT a FROM orders")  # of its two types only one is stored


def test_channels_of_one_table_share_columns_and_keep_their_types(place: Place) -> None:
    put(place, {"n": 1})
    put(place, {"n": "one"}, first=2, channel="bills")
    put(place, {"n": 2.5}, first=3)
    assert ask(place, "SELECT n FROM orders ORDER BY id") == [(1.0,), (2.5,)]
    assert ask(place, "SELECT n FROM bills") == [("one",)]


def test_a_channel_whose_name_is_taken_has_another(place: Place) -> None:
    put(place, {"a": 1}, channel="events")
    assert ask(place, "SELECT a FROM events_typed") == [(1,)]
    assert ask(place, "SELECT count(*) FROM all_events") == [(1,)]


def test_changes_are_recorded_and_repeats_are_not(place: Place) -> None:
    put(place, {"total": 1})
    put(place, {"total": 2}, first=2)
    put(place, {"total": 2.5, "Total": 1}, first=3)
    put(place, {"total": "n/a"}, first=4)
    put(place, {"total": 5, "Total": 1}, first=5)
    found = ask(place, "SELECT version, fields, left_out, cause FROM holdfast_schemas ORDER BY version")
    assert found == [
        (1, '{"total":"BIGINT"}', [], "total: BIGINT"),
        (2, '{"total":"DOUBLE"}', ["Total"], "total: BIGINT → DOUBLE; Total: left out"),
        (3, '{"total":"VARCHAR"}', ["Total"], "total: DOUBLE → VARCHAR"),
    ]
    totals = ask(place, "SELECT total FROM orders ORDER BY id")
    assert totals == [("1",), ("2",), ("2.5",), ("n/a",), ("5",)]


def test_a_record_that_cannot_go_in_changes_no_type(place: Place) -> None:
    """A rebuild leaves it out, and the columns are to be the same."""
    mapped = Tables({"orders": Table("sales", (Column("n", "$.n", "integer"),))})
    place = Place(place.folder, tables=mapped, warehouse=place.url)
    put(place, {"n": 1}, {"n": "x", "more": 1}, {"n": 3})
    put(place, {"n": "y", "other": True}, first=4)
    assert ask(place, "SELECT id, n, typeof(n) FROM orders ORDER BY id") == [
        ("e1", 1, "BIGINT"),
        ("e3", 3, "BIGINT"),
    ]
    assert ask(place, "SELECT version, cause FROM holdfast_schemas") == [(1, "n: BIGINT")]


def test_another_process_goes_on_with_the_versions_that_are_there(place: Place) -> None:
    put(place, {"a": 1})
    other = Place(place.folder, warehouse=place.url)
    put(other, {"b": 1}, first=2)
    put(place, {"c": 1}, first=3)
    assert ask(place, "SELECT a, b, c FROM orders ORDER BY id") == [
        (1, None, None),
        (None, 1, None),
        (None, None, 1),
    ]
    assert ask(place, "SELECT list(version ORDER BY version) FROM holdfast_schemas") == [([1, 2, 3],)]


def test_a_declared_schema_decides_over_what_arrives(tmp_path: Path) -> None:
    schema = {"properties": {"at": {"type": "string", "format": "date-time"}}, "type": "object"}
    tables = Tables(declared={"orders": json.dumps(schema)})
    place = Place(tmp_path, tables=tables)
    put(place, {"at": "2026-03-01T10:00:00Z", "more": 1})
    assert ask(place, 'SELECT typeof("at"), epoch("at")::INTEGER, more FROM orders') == [
        ("TIMESTAMP WITH TIME ZONE", 1_772_359_200, 1)
    ]


def test_data_that_is_no_object_or_no_json_stays_as_it_is(place: Place) -> None:
    put(place, [1, 2], 5, b'{"a":' * 300 + b"1" + b"}" * 300)
    assert ask(place, "SELECT count(*), count(data) FROM orders") == [(3, 3)]


def test_a_table_that_takes_the_name_of_a_view_gets_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    put(place, {"a": 1})
    later = Place(tmp_path, tables=Tables({"orders": Table("orders")}))
    put(later, {"a": 2}, first=2)
    put(later, {"a": 2, "b": 1}, first=3)
    assert ask(later, "SELECT count(*) FROM orders") == [(2,)]
    assert ask(later, "SELECT a, b FROM orders_typed ORDER BY id") == [(2, None), (2, 1)]
    assert ask(later, "SELECT count(*) FROM all_events") == [(3,)]
    assert ask(later, "SELECT list(cause ORDER BY version) FROM holdfast_schemas") == [
        (["a: BIGINT", "table orders", "b: BIGINT"],)
    ]


def test_the_file_itself_has_the_views(tmp_path: Path) -> None:
    place = Place(tmp_path)
    put(place, {"total": 1.5})
    with duckdb.connect(str(place.file), read_only=True) as connection:
        assert connection.execute("SELECT total FROM orders").fetchall() == [(1.5,)]


ORDER = {
    "type": "object",
    "properties": {
        "total": {"type": "integer"},
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "note": {"type": "string"},
    },
}


def test_a_value_that_does_not_fit_a_declared_type_is_null_and_stays_in_the_data(place: Place) -> None:
    place.tables.stored["orders"] = json.dumps(ORDER)
    unfit = {"total": "many", "at": "soon", "note": {"a": 1}, "more": 1}
    put(place, {"total": 3, "at": "2026-03-01T10:00:00Z"}, unfit, ["no object"], {"total": 2.5})
    kinds = 'typeof(total), typeof("at"), typeof(note), typeof(more)'
    assert ask(place, f"SELECT DISTINCT {kinds} FROM orders") == [
        ("BIGINT", "TIMESTAMP WITH TIME ZONE", "VARCHAR", "BIGINT")
    ]
    found = ask(place, 'SELECT id, total, "at" IS NOT NULL, more FROM orders ORDER BY id')
    assert found[:3] == [("e1", 3, True, None), ("e2", None, False, 1), ("e3", None, False, None)]
    [(text,)] = ask(place, "SELECT data FROM orders WHERE id = 'e2'")
    assert json.loads(text) == unfit
    assert ask(place, "SELECT count(*) FROM failed_events") == [(0,)]


def test_a_schema_that_changes_widens_the_columns(place: Place) -> None:
    place.tables.stored["orders"] = json.dumps(ORDER)
    put(place, {"total": 3})
    place.tables.stored["orders"] = json.dumps(
        {"properties": {"total": {"type": "number"}}, "type": "object"}
    )
    put(place, {"total": 2.5}, first=2)
    assert ask(place, "SELECT total FROM orders ORDER BY id") == [(3.0,), (2.5,)]


def test_a_json_schema_that_describes_far_more_than_it_has_ends_soon() -> None:
    every = [{"$ref": "#/$defs/a"}] * 200
    bomb = {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": every, "type": "object", "properties": {"x": {"anyOf": every}}}},
    }
    began = time.process_time()
    declared(bomb)
    assert time.process_time() - began < 5


async def test_the_ingest_reads_what_was_declared(database: str, caplog: pytest.LogCaptureFixture) -> None:
    async with holdfast.connect(database) as hf:
        await hf.declare("orders", ORDER)
        await hf.partitions.all[0].backend.records.put("gbe.state.schemas.bills", {"schema": "{"}, 0)

        def read() -> None:
            tables = Tables(declared={"parcels": "{}"})
            with Connection([database]) as connection:
                schemas = DeclaredSchemas(connection, "gbe", tables)
                schemas.refresh(["orders", "bills", "others"])
                assert tables.stored.keys() == {"orders"}
                assert tables.declared_for("orders") == declared(ORDER)
                connection.run(Schemas(connection.backends[0]).remove("orders"))
                schemas.refresh(["orders"])
                assert tables.stored.keys() == {"orders"}  # it was read a moment ago
                DeclaredSchemas(connection, "gbe", tables).refresh(["orders"])
                assert tables.stored == {}

        await asyncio.to_thread(read)
    assert "the schema of bills was not read" in caplog.text
