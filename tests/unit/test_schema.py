"""Schemas: what is taken for one, and what is said of it."""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.bus.schemas import schema_of
from holdfast.model.errors import InvalidInput, TooLarge
from holdfast.model.schema import MAX_SCHEMA, SchemaField, check_schema, fields, parse_schema


class Size(Enum):
    SMALL, LARGE = "s", "l"


class Line(BaseModel):
    price: float


class Order(BaseModel):
    id: int
    size: Size
    lines: list[Line] = []
    note: str | None = None
    more: dict[str, Any] = {}


def test_the_fields_of_a_type_are_named_in_words() -> None:
    found, left = fields(schema_of(Order), 5)
    assert found == [
        SchemaField("id", "integer", True),
        SchemaField("size", '"s" | "l"', True),
        SchemaField("lines", "list of Line", False),
        SchemaField("note", "text or null", False),
        SchemaField("more", "More", False),
    ]
    assert left == 0
    assert fields(schema_of(Order), 2) == (found[:2], 3)
    assert fields({"type": "array"}, 5) == fields({"$ref": "#"}, 5) == ([], 0)


def test_the_words_of_a_hostile_schema_are_few() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/a"}] * 1_000}
    many = {f"f{n}": {"$ref": "#/$defs/a"} for n in range(2_000)}
    began = time.process_time()
    found, left = fields({"properties": many, "$defs": {"a": loop}}, 200)
    assert (len(found), left) == (200, 1_800)
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "true",
        "1",
        '{"type": 5}',
        '{"type": "text"}',
        '{"type": []}',
        '{"properties": []}',
        '{"properties": {"a": 1}}',
        '{"anyOf": {}}',
        '{"anyOf": []}',
        '{"required": "a"}',
        '{"enum": []}',
        '{"minimum": "1"}',
        '{"minimum": true}',
        '{"maximum": 1e999}',
        '{"maxLength": -1}',
        '{"multipleOf": 0}',
        '{"minimum": NaN}',
        '{"$ref": 1}',
        '{"items": {"$ref": "#/$defs/missing"}}',
        '{"a":' * 100_000,
        '{"not":' * 70 + "{}" + "}" * 70,
        "[" * 100_000,
    ],
)
def test_what_is_no_json_schema_is_refused_in_words(text: str) -> None:
    with pytest.raises(InvalidInput, match="schema") as refused:
        parse_schema(text)
    assert len(str(refused.value)) < 500


def test_a_large_one_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(TooLarge):
        parse_schema(b" " * (MAX_SCHEMA + 1))
    with pytest.raises(TooLarge):
        check_schema({"description": "x" * 10_000_000})


def test_what_is_declared_is_a_copy_in_json() -> None:
    given: dict[str, Any] = {"enum": ["\ud800", "\x00", 1.0]}
    kept = check_schema(given)
    given["enum"].clear()
    assert kept == {"enum": ["\ud800", "\x00", 1.0]}
    with pytest.raises(InvalidInput, match="not JSON"):
        check_schema({"enum": [object()]})


@pytest.mark.parametrize("given", [5, "Order", Size.SMALL, [int], type(json)])
def test_what_is_no_type_is_refused_in_words(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"pydantic|JSON Schema"):
        schema_of(given)
