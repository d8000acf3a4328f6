"""Validation of data, and the mapping of its parts to columns."""

from __future__ import annotations

import json

import pytest

from holdfast.model.errors import InvalidInput
from holdfast.pipeline.ingest.validation import ValidationRule, ValidationRules, check_data
from holdfast.pipeline.warehouse.tables import Column, Table, Tables, key_of

SCHEMA = json.dumps({"type": "object", "properties": {"total": {"type": "number", "minimum": 0}}})


@pytest.mark.parametrize("data", [b"{}", b"[1]", b"null", b'"\\u0000"', b"1" * 40, b"[" * 500 + b"]" * 500])
def test_json_is_valid(data: bytes) -> None:
    assert check_data(ValidationRule(), data) == (True, None)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"\x00", b"nan", b"[" * 3000 + b"]" * 3000])
def test_what_is_no_json_is_invalid_unless_anything_goes(data: bytes) -> None:
    is_json, problem = check_data(ValidationRule(), data)
    assert not is_json
    assert problem is not None
    assert problem.startswith("not JSON")
    assert check_data(ValidationRule(payload="any"), data) == (False, None)


def test_required_fields_must_be_there() -> None:
    rule = ValidationRule(required=("id", "total"))
    assert check_data(rule, b'{"id":1,"total":0}') == (True, None)
    assert check_data(rule, b'{"id":1,"total":null}') == (True, "required fields are missing: total")
    assert check_data(rule, b"[]") == (True, "not an object: required fields are id, total")


def test_a_schema_says_where_it_is_violated() -> None:
    rule = ValidationRule(schema=SCHEMA)
    assert check_data(rule, b'{"total":1}') == (True, None)
    assert check_data(rule, b'{"total":-1}') == (True, "$.total: -1 is less than the minimum of 0")


def test_the_most_specific_rule_decides() -> None:
    rules = ValidationRules(
        {"gbe.>": ValidationRule(payload="any"), "gbe.orders": ValidationRule(required=("id",))}
    )
    assert rules.problem("gbe.raw", b"\xff") is None
    assert rules.problem("gbe.orders", b"{}") == "required fields are missing: id"
    assert rules.problem("other", b"\xff") == check_data(ValidationRule(), b"\xff")[1]


@pytest.mark.parametrize(
    ("name", "path", "kind"),
    [
        ("Total", "$.total", "text"),
        ("data", "$.total", "text"),
        ("total", "total", "text"),
        ("total", "$.a'; DROP TABLE events; --", "text"),
        ("total", "$.total", "money"),
        ("total", '$."a\'b"', "text"),
    ],
)
def test_columns_that_cannot_be_are_refused(name: str, path: str, kind: str) -> None:
    with pytest.raises(InvalidInput):
        Column(name, path, kind)


def test_a_path_finds_its_part() -> None:
    data = {"user": {"names": ["a", "b"]}, "odd name": 1}
    assert Column("x", "$.user.names[1]").find(data) == "b"
    assert Column("x", '$."odd name"').find(data) == 1
    assert Column("x", "$.user.names[9]").find(data) is None
    assert Column("x", "$.user.names.first").find(data) is None


def test_tables_go_by_channel() -> None:
    tables = Tables({"gbe.>": Table("{channel}"), "gbe.plays": Table("playback_events")})
    assert tables.of("gbe.a-b").name == "gbe_a_b"
    assert tables.of("gbe.plays").name == "playback_events"
    assert tables.of("other").name == "events"
    for name in ("failed_events", "holdfast_ledger", "Events", 'x"; DROP'):
        with pytest.raises(InvalidInput):
            Table(name).named_for("c")


def test_keys_come_from_headers_first() -> None:
    columns = (Column("session_key", "$.session"),)
    assert key_of("session_key", {"session_key": "h"}, '{"session":"d"}', columns) == "h"
    assert key_of("session_key", {}, '{"session":"d"}', columns) == "d"
    assert key_of("session_key", {}, '{"session":7}', columns) == "7"
    assert key_of("correlation_key", {}, '{"session":"d"}', columns) is None
    assert key_of("session_key", {}, None, columns) is None
