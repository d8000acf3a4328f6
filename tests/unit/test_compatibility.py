"""Compatibility of JSON Schemas: what an old one allows, a new one that is called compatible allows too."""

from __future__ import annotations

import json
import time
from copy import deepcopy
from typing import Annotated, Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, TypeAdapter, create_model

from holdfast.model.compatibility import incompatibilities
from holdfast.model.schema import check_schema


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"


class Coin(BaseModel):
    kind: Literal["coin"] = "coin"


class Tree(BaseModel):
    value: int
    nodes: list[Tree] = []


class WiderTree(BaseModel):
    value: int | None
    nodes: list[WiderTree] = []
    note: str = ""


class OtherTree(BaseModel):
    value: int
    nodes: list[OtherTree] = []
    note: str


def model(**fields: Any) -> Any:
    return create_model(
        "Order", **{name: each if isinstance(each, tuple) else (each, ...) for name, each in fields.items()}
    )


def schema(annotation: Any) -> dict[str, Any]:
    return check_schema(TypeAdapter(annotation).json_schema())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (model(a=int), model(a=int, b=(str, ""))),
        (model(a=int, b=str), model(a=int)),
        (model(a=int), model(a=float)),
        (model(a=int), model(a=int | None)),
        (model(a=int), model(a=(int, 0))),
        (model(a=Literal["x"]), model(a=Literal["x", "y"])),
        (model(a=Literal["x", "y"]), model(a=str)),
        (model(a=Literal["x", 1]), model(a=str | int)),
        (model(a=Annotated[int, Field(ge=1, le=5)]), model(a=Annotated[int, Field(ge=0, lt=6)])),
        (model(a=Annotated[str, Field(max_length=5)]), model(a=Annotated[str, Field(max_length=6)])),
        (model(a=list[int]), model(a=list[int | str])),
        (model(a=tuple[int, str]), model(a=list[int | str])),
        (model(a=dict[str, int]), model(a=dict[str, float])),
        (
            model(pay=Annotated[Card | Cash, Field(discriminator="kind")]),
            model(pay=Annotated[Card | Cash | Coin, Field(discriminator="kind")]),
        ),
        (Tree, WiderTree),
    ],
)
def test_a_wider_type_is_compatible(old: Any, new: Any) -> None:
    assert incompatibilities(schema(old), schema(new)) == []


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (model(a=int), model(a=int, b=str), "b: is required now"),
        (model(a=(int, 0)), model(a=int), "a: is required now"),
        (model(a=float), model(a=int), "a: was number, is integer now"),
        (model(a=int | None), model(a=int), "a: was null, is integer now"),
        (model(a=Literal["x", "y"]), model(a=Literal["x"]), 'a: "y" is not allowed any more'),
        (model(a=str), model(a=Literal["x"]), "a: is one of a few values now, was any"),
        (
            model(a=Annotated[int, Field(le=5)]),
            model(a=Annotated[int, Field(le=4)]),
            "a: maximum is 4 now, was 5",
        ),
        (model(a=int), model(a=Annotated[int, Field(gt=0)]), "a: minimum is 0 now, was none"),
        (model(a=str), model(a=Annotated[str, Field(min_length=1)]), "a: minLength is 1 now, was none"),
        (model(a=str), model(a=Annotated[str, Field(pattern="^x")]), 'a: pattern is "^x" now, was none'),
        (model(a=list[model(b=int)]), model(a=list[model(b=str)]), "a[].b: was integer, is string now"),
        (model(pay=Card | Cash), model(pay=Cash), 'pay.kind: "card" is not allowed any more'),
        (Tree, OtherTree, "note: is required now"),
    ],
)
def test_what_would_break_is_named_with_its_path(old: Any, new: Any, reason: str) -> None:
    assert reason in incompatibilities(schema(old), schema(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"const": True}, {"const": 1}),
        ({"enum": [0]}, {"enum": [False]}),
        ({"not": {"const": 1}}, {"title": "x", "not": {"const": True}}),
        ({"properties": {"a": {"const": [True]}}}, {"properties": {"a": {"const": [1]}}, "title": "x"}),
        ({"required": ["a"], "properties": {}}, {"properties": {"a": {"type": "string"}}, "required": ["a"]}),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
            {"properties": {"a": {}, "b": {"type": "string"}}},
        ),
    ],
)
def test_what_only_looks_the_same_is_refused(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert incompatibilities(old, new) != []


def test_a_field_that_others_may_have_sent_with_another_type_is_a_break() -> None:
    old = {"type": "object", "properties": {"a": {}}, "additionalProperties": True}
    new = {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}, "additionalProperties": True}
    assert incompatibilities(old, new) == ["b: was any, is string now"]


@pytest.mark.parametrize(
    "keyword",
    [
        {"not": {"type": "string"}},
        {"if": {"type": "string"}, "then": {"minLength": 3}},
        {"unevaluatedProperties": False},
        {"patternProperties": {"^x": False}},
        {"contains": {"type": "string"}},
        {"$dynamicRef": "#node"},
        {"x-ours": True},
        {"$ref": "other.json"},
        {"$ref": "#/$defs/none"},
    ],
)
def test_what_cannot_be_decided_is_refused_unless_nothing_changed(keyword: dict[str, Any]) -> None:
    assert "cannot tell" in str(incompatibilities({}, keyword))
    assert incompatibilities(keyword, keyword) == []
    old = {"properties": {"a": {"type": "array", "items": keyword}}}
    same = incompatibilities(old, {**old, "title": "changed"})
    assert same == [] or "$" in str(keyword)


def test_hostile_schemas_end_soon() -> None:
    loop = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
    every = [{"$ref": "#/$defs/a"}] * 50
    bomb = {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"anyOf": [*every, {"type": "object", "properties": {"x": {"anyOf": every}}}]}},
    }
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"properties": {"a": deep}}
    value: Any = 1
    for _ in range(400):
        value = [value]
    began = time.process_time()
    for hostile in (loop, bomb, deep, {"enum": [value]}, {"enum": list(range(20_000))}):
        for other in (loop, bomb, {**deep, "type": "object"}, {"type": "string"}, {"enum": [[value]]}):
            incompatibilities(hostile, other)
            incompatibilities(other, hostile)
    assert time.process_time() - began < 10
    assert "cannot tell" in str(incompatibilities(loop, {**loop, "title": "x"}))


NAMES = "abcd"
NODE = {"$ref": "#/$defs/node"}
VALUES = st.sampled_from([None, True, False, 0, 1, 2, 1.5, -1, "", "a", "ab", "abc", [], [1], {}, {"a": 1}])
small = st.integers(0, 3)


def bounds(*keywords: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(keywords, small))


LEAVES = st.one_of(
    st.sampled_from([{}, True, False, NODE]),
    st.sampled_from(["null", "boolean", "string", ["string", "null"], ["integer", "array"]]).map(
        lambda kind: {"type": kind}
    ),
    bounds("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum").flatmap(
        lambda more: st.sampled_from([{"type": "integer", **more}, {"type": "number", **more}, more])
    ),
    st.sampled_from([1, 2, 4]).map(lambda step: {"type": "integer", "multipleOf": step}),
    bounds("minLength", "maxLength").map(lambda more: {"type": "string", **more}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    VALUES.map(lambda value: {"const": value}),
)


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from(NAMES), inner, max_size=3)
    objects = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": named,
            "required": st.lists(st.sampled_from(NAMES), unique=True, max_size=2),
            "additionalProperties": inner,
            "minProperties": small,
            "maxProperties": small,
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={
            "items": inner,
            "prefixItems": several,
            "minItems": small,
            "maxItems": small,
            "uniqueItems": st.booleans(),
        },
    )
    groups = st.sampled_from(["anyOf", "oneOf", "allOf"]).flatmap(
        lambda keyword: several.map(lambda found: {keyword: found})
    )
    beside = st.tuples(st.one_of(objects, LEAVES), groups).map(
        lambda two: {**two[0], **two[1]} if isinstance(two[0], dict) else two[1]
    )
    return st.one_of(objects, arrays, groups, beside)


PARTS = st.recursive(LEAVES, larger, max_leaves=6)
ROOTS = st.tuples(PARTS, PARTS).map(lambda two: {"allOf": [two[0]], "$defs": {"node": two[1]}})


NARROWER = st.one_of(
    st.sampled_from(NAMES).map(lambda name: {"required": [name]}),
    st.tuples(st.sampled_from(NAMES), LEAVES).map(lambda two: {"properties": {two[0]: two[1]}}),
    st.sampled_from(
        ["minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"]
    ).map(lambda keyword: {keyword: 1}),
    st.sampled_from(
        [
            {"additionalProperties": False},
            {"items": False},
            {"uniqueItems": True},
            {"multipleOf": 2},
            {"type": "integer"},
            {"enum": [1, "a"]},
            {"anyOf": [{"type": "string"}]},
        ]
    ),
)


@st.composite
def changed(draw: st.DrawFn, node: Any) -> Any:
    """A schema with some changes: most of them widen it, some narrow it."""
    if not isinstance(node, dict) or draw(st.integers(0, 9)) == 0:
        return draw(st.one_of(st.just(node), st.just({}), PARTS))
    made = {}
    for keyword, value in node.items():
        if keyword in ("properties", "$defs"):
            made[keyword] = {name: draw(changed(each)) for name, each in value.items()}
        elif keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            made[keyword] = [draw(changed(each)) for each in value]
            if draw(st.booleans()) and keyword != "prefixItems":
                made[keyword].append(draw(PARTS))
        elif keyword in ("items", "additionalProperties"):
            made[keyword] = draw(changed(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            made[keyword] = value + draw(st.integers(-1, 1)) if keyword != "multipleOf" else value
        elif keyword == "enum":
            made[keyword] = [*value, draw(VALUES)]
        elif keyword == "type":
            made[keyword] = {"integer": "number"}.get(str(value), value)
        else:
            made[keyword] = value
    for keyword in list(made):
        if keyword not in ("$defs", "type", "$ref", "allOf") and draw(st.integers(0, 3)) == 0:
            del made[keyword]
    if "properties" in made and draw(st.booleans()):
        made["properties"] = {**made["properties"], draw(st.sampled_from(NAMES)): draw(PARTS)}
    made |= draw(st.one_of(*[st.just({})] * 4, NARROWER))
    return {
        name: max(0, value) if name.startswith(("min", "max")) and name[3:4].isupper() else value
        for name, value in made.items()
    }


def closed(node: Any, whole: bool = True) -> Any:
    """The schema without the properties that it does not name, where nothing else is said of the object."""
    if not isinstance(node, dict):
        return node
    groups = [keyword for keyword in ("anyOf", "oneOf", "$ref") if keyword in node]
    own = set(node) - {*groups, "allOf", "$defs"}
    whole = whole and bool(own) + len(groups) + len(node.get("allOf", ())) == 1
    made = {keyword: deep(keyword, value, whole) for keyword, value in node.items()}
    if "$ref" in node and not whole:
        made["$ref"] += "_open"
    if whole and "properties" in node and "additionalProperties" not in node:
        made["additionalProperties"] = False
        made["properties"] = {**dict.fromkeys(node.get("required", ()), True), **made["properties"]}
    return made


def deep(keyword: str, value: Any, whole: bool) -> Any:
    match keyword:
        case "properties":
            return {name: closed(each) for name, each in value.items()}
        case "$defs":
            return {"node": closed(value["node"]), "node_open": closed(value["node"], whole=False)}
        case "items" | "additionalProperties":
            return closed(value)
        case "prefixItems":
            return [closed(each) for each in value]
        case "anyOf" | "oneOf" | "allOf":
            return [closed(each, whole) for each in value]
    return value


@st.composite
def instance(draw: st.DrawFn, node: Any, root: Any, depth: int = 0) -> Any:
    """A value that most often is one of a schema."""
    if not isinstance(node, dict) or not node or depth > 6 or draw(st.integers(0, 15)) == 0:
        return draw(VALUES)
    if "$ref" in node:
        return draw(instance(root["$defs"]["node"], root, depth + 1))
    for keyword in ("anyOf", "oneOf"):
        if keyword in node and draw(st.booleans()):
            return draw(instance(draw(st.sampled_from(node[keyword])), root, depth + 1))
    if "allOf" in node:
        found = [draw(instance(each, root, depth + 1)) for each in node["allOf"]]
        if all(isinstance(each, dict) for each in found):
            return {name: value for each in found for name, value in each.items()}
        return draw(st.sampled_from(found))
    if "enum" in node:
        return draw(st.sampled_from(node["enum"]))
    if "const" in node:
        return node["const"]
    match node.get("type"):
        case "object":
            names = {*node.get("required", ()), *draw(st.sets(st.sampled_from(NAMES), max_size=3))}
            rest = node.get("additionalProperties", {})
            named = {name: node.get("properties", {}).get(name, rest) for name in sorted(names)}
            return {name: draw(instance(each, root, depth + 1)) for name, each in named.items()}
        case "array":
            first = node.get("prefixItems", [])
            count = draw(st.integers(0, 3))
            parts = [*first, *[node.get("items", {})] * 3][:count]
            return [draw(instance(each, root, depth + 1)) for each in parts]
        case "integer" | "number":
            return draw(st.sampled_from([-1, 0, 1, 2, 3, 4, 1.0, 0.5, 2.5]))
        case "string":
            return draw(st.sampled_from(["", "a", "ab", "abc", "abcd"]))
    return draw(VALUES)


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_called_compatible_takes_all_that_was_allowed(data: st.DataObject) -> None:
    old = data.draw(ROOTS)
    new = data.draw(st.one_of(changed(old), ROOTS))
    new = {"$defs": old["$defs"], **new} if isinstance(new, dict) else {}
    if incompatibilities(old, new):
        return
    before, after = Draft202012Validator(closed(deepcopy(old))), Draft202012Validator(new)
    for _ in range(5):
        value = data.draw(instance(old, old))
        if is_valid(before, value):
            assert is_valid(after, value), (json.dumps(old), json.dumps(new), value)


def is_valid(validator: Draft202012Validator, value: Any) -> bool:
    """A reference that leads back to itself for the same value has no meaning: nothing is one of it."""
    try:
        return validator.is_valid(value)
    except RecursionError:
        return False
