"""Schemas: what a channel says of its data, as a JSON Schema."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from holdfast.model.errors import InvalidInput, TooLarge

Schema = dict[str, Any]
MAX_SCHEMA = 131_072
"""The most characters of a schema: a record of every store can hold it."""
MAX_DEPTH = 64
_HOPS = 32
_SHOWN = 5
TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")


@dataclass(frozen=True, slots=True)
class DeclaredSchema:
    """The schema that was declared for a channel."""

    channel: str
    schema: Schema
    version: int
    """Rises with every change."""
    changed_at: datetime

    @property
    def text(self) -> str:
        """The schema as JSON."""
        return schema_text(self.schema)


class SchemaField(NamedTuple):
    """A field at the top level of the data."""

    name: str
    type: str
    """In words."""
    required: bool


def parse_schema(text: str | bytes) -> Schema:
    """Return the JSON Schema in a text. Raises `InvalidInput` where it is none, `TooLarge` where it is."""
    if len(text) > MAX_SCHEMA:
        raise TooLarge(
            f"a schema of {len(text)} characters; the limit is {MAX_SCHEMA}: leave out descriptions"
        )
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the schema is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidInput(f"a schema is a JSON object, not {type(found).__name__}; write {{}} for any data")
    _check(found, "#", 0, found)
    return found


def check_schema(schema: Mapping[str, Any]) -> Schema:
    """Return a copy of a JSON Schema. Raises `InvalidInput` and `TooLarge` as `parse_schema` does."""
    return parse_schema(schema_text(schema))


def schema_text(schema: Mapping[str, Any]) -> str:
    """Return a schema as JSON in ASCII: every store can hold it."""
    try:
        return json.dumps(schema, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the schema is not JSON: {error}") from None


def referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return what `#/$defs/Order` means in a schema; None where it means nothing, or something elsewhere."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    node: Any = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        node = node.get(name) if isinstance(node, Mapping) else None
    return node


def resolved(node: Any, root: Mapping[str, Any]) -> Any:
    """Return what a schema refers to, with what stands beside the reference; itself where that is nothing."""
    for _ in range(_HOPS):
        if not isinstance(node, Mapping) or "$ref" not in node:
            return node
        target = referred(node["$ref"], root)
        if not isinstance(target, Mapping):
            return target
        node = {**target, **{name: value for name, value in node.items() if name != "$ref"}}
    return None


def fields(schema: Schema, most: int) -> tuple[list[SchemaField], int]:
    """Return the first fields that a schema names at the top level of the data, and the number of others."""
    top = resolved(schema, schema)
    if not isinstance(top, Mapping):
        return [], 0
    named, required = top.get("properties", {}), {*top.get("required", ())}
    shown = islice(named.items(), most)
    found = [SchemaField(name, type_words(each, schema), name in required) for name, each in shown]
    return found, len(named) - len(found)


def type_words(node: Any, root: Mapping[str, Any], depth: int = 0) -> str:
    """Return the type that a schema describes, in a few words: `integer or null`, `list of Line`."""
    node = resolved(node, root)
    if not isinstance(node, Mapping) or depth > 2:
        return "any"
    values = node.get("enum", [node["const"]] if "const" in node else [])
    if values:
        shown = " | ".join(json.dumps(each, ensure_ascii=False)[:40] for each in values[:_SHOWN])
        return shown + " | …" * (len(values) > _SHOWN)
    variants = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    if variants:
        words = dict.fromkeys(type_words(each, root, depth + 1) for each in variants[:_SHOWN])
        return " or ".join(words)
    kinds = node.get("type", "any")
    return " or ".join(
        _words(kind, node, root, depth) for kind in ([kinds] if isinstance(kinds, str) else kinds)
    )


def _words(kind: str, node: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> str:
    match kind:
        case "array":
            return f"list of {type_words(node['items'], root, depth + 1)}" if "items" in node else "list"
        case "object":
            return str(node.get("title", "object"))[:40]
        case "string":
            return str(node.get("format", "text"))[:40]
    return kind


def kind_of(value: Any) -> str:
    """Return the type of a value; a number that is whole is an integer."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
    return "array" if isinstance(value, list) else "object"


def frozen(value: Any) -> str:
    """Return a text that two values have in common if JSON Schema takes them as equal: 1 and 1.0 are."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check(node: Any, path: str, depth: int, root: Schema) -> None:
    if isinstance(node, bool):
        return
    if not isinstance(node, Mapping):
        raise InvalidInput(f"{path} of the schema is {type(node).__name__}; write an object or a boolean")
    if depth > MAX_DEPTH:
        raise InvalidInput(f"the schema nests deeper than {MAX_DEPTH} levels at {path}; use $defs and $ref")
    for keyword, value in node.items():
        here = f"{path}/{keyword}"
        if keyword in _VALUES and not _VALUES[keyword](value):
            raise InvalidInput(f"{here[:200]} of the schema cannot be {str(value)[:80]!r}")
        for name, each in _within(keyword, value, here):
            _check(each, f"{here}{name}"[:200], depth + 1, root)
    target = node.get("$ref", "")
    if target.startswith("#/") and not isinstance(referred(target, root), Mapping | bool):
        raise InvalidInput(f"{path[:200]} of the schema refers to {target[:80]!r}, where there is none")


def _within(keyword: str, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the schemas that a keyword's value has."""
    if keyword in _SCHEMAS:
        yield "", value
    elif keyword in _LISTS:
        if not isinstance(value, list) or not value:
            raise InvalidInput(f"{path[:200]} of the schema is no list of schemas")
        yield from ((f"/{place}", each) for place, each in enumerate(value))
    elif keyword in _MAPS:
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise InvalidInput(f"{path[:200]} of the schema is no object of schemas")
        yield from ((f"/{name}", each) for name, each in value.items())


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and bool(value >= 0 and value == int(value))


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _is_type(value: Any) -> bool:
    kinds = [value] if isinstance(value, str) else value
    return _is_names(kinds) and bool(kinds) and set(kinds) <= {*TYPES}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SCHEMAS = frozenset(
    ("additionalProperties", "propertyNames", "items", "contains", "not", "if", "then", "else")
)
_SCHEMAS |= {"unevaluatedProperties", "unevaluatedItems"}
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_VALUES: dict[str, Callable[[Any], bool]] = {
    "type": _is_type,
    "enum": lambda value: isinstance(value, list) and bool(value),
    "required": _is_names,
    **dict.fromkeys(("$ref", "title", "description", "format", "pattern", "$schema", "$id"), _is_text),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    **dict.fromkeys(
        ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count
    ),
    "uniqueItems": lambda value: isinstance(value, bool),
}
