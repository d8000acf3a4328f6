"""The structure of a channel's data: fields and their types, learned from what arrives, widened, never
narrowed.

A structure is written as DuckDB writes the structure of JSON: the name of a type, an object of structures, or
a list with the structure of its elements.

    {"total": "DOUBLE", "customer": {"id": "BIGINT", "city": "VARCHAR"}, "tags": ["VARCHAR"]}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.model.schema import referred

Structure = str | dict[str, Any] | list[Any]

FIELDS, DEPTH, NAME = 200, 4, 128
"""The most fields of a channel, how deep they nest, and how long their names are. The rest is in `data`."""
_PARTS = 10_000
"""Parts of a JSON Schema that are looked at: with references it may describe far more than it has."""
NULL, JSON, TEXT = "NULL", "JSON", "VARCHAR"
_WIDTHS = ("BIGINT", "HUGEINT", "DOUBLE")


def widened(one: Structure, other: Structure) -> Structure:
    """The narrowest structure that holds both. Scalars of different kinds become text, what is sometimes an
    object and sometimes not becomes JSON as text."""
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    match one, other:
        case dict(), dict():
            both = {name: widened(each, other.get(name, NULL)) for name, each in one.items()}
            return both | {name: each for name, each in other.items() if name not in one}
        case [mine], [theirs]:
            return [widened(mine, theirs)]
        case str(), str() if JSON not in (one, other):
            if one in _WIDTHS and other in _WIDTHS:
                return max(one, other, key=_WIDTHS.index)
            return TEXT
    return JSON


class StructureLimiter:
    """Cuts a structure to what columns can be made of, and names what it leaves out."""

    def __init__(self) -> None:
        self._left = FIELDS
        self.left_out: list[str] = []

    def cut(self, structure: Structure, path: str = "", depth: int = 0) -> Structure:
        """The structure without fields that are too many, too deep, or cannot be a name."""
        match structure:
            case dict() if depth >= DEPTH:
                return JSON
            case dict():
                return self._fields(structure, path, depth) or JSON
            case [each]:
                return [self.cut(each, f"{path}[]", depth + 1)]
        return structure

    def _fields(self, structure: Mapping[str, Structure], path: str, depth: int) -> dict[str, Structure]:
        kept: dict[str, Structure] = {}
        seen: set[str] = set()
        for name, each in structure.items():
            here = f"{path}.{name}" if path else name
            folded = name.casefold()  # SQL takes names that differ by their case as one
            if folded in seen or not is_name(name) or self._left == 0:
                self.left_out.append(here)
                continue
            seen.add(folded)
            self._left -= 1
            kept[name] = self.cut(each, here, depth + 1)
        return kept


def is_name(name: str) -> bool:
    """Whether a field can be a column of that name."""
    return 0 < len(name) <= NAME and name.isprintable()


def changes(before: Structure, after: Structure, path: str = "") -> list[str]:
    """What is new in a structure, in words."""
    if before == after:
        return []
    if isinstance(before, dict) and isinstance(after, dict):
        told = []
        for name, each in after.items():
            here = f"{path}.{name}" if path else name
            told += changes(before[name], each, here) if name in before else [f"{here}: {brief(each)}"]
        return told
    return [f"{path or 'data'}: {brief(before)} → {brief(after)}"]


def brief(structure: Structure) -> str:
    """A structure in a word."""
    match structure:
        case dict():
            return "object"
        case [each]:
            return f"list of {brief(each)}"
    return str(structure)


def declared(schema: Mapping[str, Any]) -> Structure:
    """The structure that a JSON Schema describes; `NULL` wherever it leaves it open, or is too large."""
    return _declared(schema, schema, 0, iter(range(_PARTS)))


def _declared(node: Any, root: Mapping[str, Any], depth: int, left: Iterator[int]) -> Structure:
    if not isinstance(node, Mapping) or depth > 2 * DEPTH or next(left, None) is None:
        return NULL
    if isinstance(node.get("$ref"), str):
        return _declared(referred(node["$ref"], root), root, depth + 1, left)
    found: Structure = NULL
    for kind in node.get("type", []) if isinstance(node.get("type"), list) else [node.get("type")]:
        found = widened(found, _of_type(kind, node, root, depth, left))
    for each in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        found = widened(found, _declared(each, root, depth + 1, left))
    return found


def _of_type(
    kind: Any, node: Mapping[str, Any], root: Mapping[str, Any], depth: int, left: Iterator[int]
) -> Structure:
    match kind:
        case "integer":
            return "BIGINT"
        case "number":
            return "DOUBLE"
        case "boolean":
            return "BOOLEAN"
        case "string":
            return {"date-time": "TIMESTAMPTZ", "date": "DATE"}.get(node.get("format", ""), TEXT)
        case "array":
            return [_declared(node.get("items"), root, depth + 1, left)]
        case "object" if node.get("properties"):
            parts = node["properties"].items()
            return {name: _declared(each, root, depth + 1, left) for name, each in parts}
    return NULL
