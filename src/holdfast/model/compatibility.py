"""Compatibility: whether everything that one JSON Schema allows is allowed by another, and if not, why.

An object whose schema names its properties, and says nothing of others, is taken to have no others:
publishers send what the schema names. What cannot be decided counts as a reason, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from holdfast.model.schema import TYPES, Schema, frozen, kind_of, referred, resolved

T = TypeVar("T")
MOST = 20
"""Reasons that are given."""
_STEPS, _LEVELS = 5_000, 100
_ANNOTATIONS = frozenset(("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "discriminator"))
_ANNOTATIONS |= {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_SPLIT = frozenset(("allOf", "anyOf", "oneOf", "$ref"))
_EITHER = ("anyOf", "oneOf")
_NUMBERS = ("integer", "number")
_BOUNDS: Mapping[str, tuple[str, ...]] = {
    "minLength": ("string",),
    "maxLength": ("string",),
    "minItems": ("array",),
    "maxItems": ("array",),
    "minProperties": ("object",),
    "maxProperties": ("object",),
}
_SAME: Mapping[str, tuple[str, ...]] = {
    "pattern": ("string",),
    "format": TYPES,
    "contentEncoding": ("string",),
    "contentMediaType": ("string",),
    "uniqueItems": ("array",),
}
_OBJECTS = frozenset(("properties", "additionalProperties", "required"))
_READ = {"type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_READ |= {*_BOUNDS, *_SAME, *_OBJECTS, "items", "prefixItems"}
_ALONE = frozenset(("not", "propertyNames", "dependentRequired", "dependentSchemas"))
"""Keywords that mean the same whatever stands beside them."""
_SINGLE = "\0"
"""Marks a schema that was made of one value."""


def incompatibilities(old: Schema, new: Schema) -> list[str]:
    """Return why data that the old schema allows may not fit the new one; nothing where all of it does."""
    if frozen(old) == frozen(new):
        return []
    try:
        reasons = _Comparison(old, new).compare(old, new, "", 0)
    except (_TooComplexError, RecursionError):
        reasons = ["cannot tell: the schemas are too complex to compare"]
    return list(dict.fromkeys(reasons))[:MOST]


class _TooComplexError(Exception):
    """More steps than a comparison may take."""


class _Comparison:
    """One comparison. `one` is always a part of the old schema, `other` one of the new."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._old, self._new = old, new
        self._steps = 0
        self._known: dict[tuple[Any, int], tuple[Any, Any]] = {}
        """What was found out about a part, by its identity; with the part, so that no other one gets it."""
        self._under: list[tuple[tuple[Any, Any, bool], int]] = []
        """Pairs of references that are being compared, and at which depth of the data."""

    def compare(
        self, one: Any, other: Any, path: str, depth: int, *, whole: bool = True, level: int = 0
    ) -> list[str]:
        """Return why a value of `one` may be none of `other`.

        `depth` is how deep in the data, `level` how many calls; `whole` is False where `one` is only a part
        of what is said of the value: others may name further properties.
        """
        self._steps += 1
        if self._steps > _STEPS:
            raise _TooComplexError
        if other is True or one is False:
            return []
        if other is False:
            return [_at(path, "is not allowed any more")]
        one = {} if one is True else one
        if level > _LEVELS or not isinstance(one, Mapping) or not isinstance(other, Mapping):
            return [_at(path, "cannot tell: it refers to itself, or to nothing")]
        if one == other and self._once(_is_alone, other) and frozen(one) == self._once(frozen, other):
            return []  # true and 1 are equal in Python only
        go = _Step(self, path, depth, level + 1)
        if _is_reference(one) and _is_reference(other):
            return self._references(one["$ref"], other["$ref"], go, depth, whole)
        if _is_reference(one):
            return go(referred(one["$ref"], self._old), other, whole)
        parts = self._once(_conjuncts, other)
        if len(parts) != 1:
            return [reason for part in parts for reason in go(one, part, whole)]
        [part] = parts
        if "$ref" in part or "allOf" in other:
            return go(one, referred(part["$ref"], self._new) if _is_reference(part) else part, whole)
        return self._split(one, part, go, whole)

    def _once(self, find: Callable[[Any], T], part: Any) -> T:
        """What a function returns for a part of a schema, which is asked about many times."""
        key = find, id(part)
        if key not in self._known:
            self._known[key] = part, find(part)
        found: T = self._known[key][1]
        return found

    def _references(self, one: Any, other: Any, go: _Step, depth: int, whole: bool) -> list[str]:
        """Two references. Those that were met above, in data around this, may be taken as compatible here:
        the data within is smaller. Met again for the same data, they lead nowhere."""
        pair = (one, other, whole)
        if any(known == pair and at < depth for known, at in self._under):
            return []
        self._under.append((pair, depth))
        try:
            return go(referred(one, self._old), referred(other, self._new), whole)
        finally:
            self._under.pop()

    def _split(self, one: Mapping[str, Any], other: Mapping[str, Any], go: _Step, whole: bool) -> list[str]:
        """Case by case: every alternative of the old schema has to fit."""
        for keyword in _EITHER:
            if keyword in one:
                rest = {name: each for name, each in one.items() if name != keyword}
                alone = not set(rest) - _ANNOTATIONS
                variants = self._tagged(one, keyword)
                pieces = variants if alone else [{"allOf": [rest, each]} for each in variants]
                return [reason for each in pieces for reason in go(each, other, whole and alone)]
        conjuncts = _conjuncts(one)
        if len(conjuncts) > 1:
            return self._any(conjuncts, other, go)
        if "allOf" in one:
            return go(conjuncts[0], other, whole)
        if "enum" in one or ("const" in one and _SINGLE not in one):
            values = one.get("enum", [one.get("const")])
            return [reason for each in values for reason in go(_of_value(each), other, whole)]
        kinds = one.get("type")
        if kinds is None and any(keyword in other for keyword in _EITHER):
            kinds = [each for each in TYPES if each != "integer"]
        if isinstance(kinds, list):
            return [reason for kind in kinds for reason in go({**one, "type": kind}, other, whole)]
        if "anyOf" in other:
            return self._one_of_many(one, other["anyOf"], go, whole, apart=False)
        if "oneOf" in other:
            return self._one_of_many(one, other["oneOf"], go, whole, apart=True)
        return list(self._leaf(one, other, go, whole))

    def _any(self, parts: Sequence[Any], other: Mapping[str, Any], go: _Step) -> list[str]:
        """All parts hold of the value: it is enough if one of them fits."""
        reasons: list[str] = []
        for each in parts:
            found = go(each, other, False)
            if not found:
                return []
            reasons += found
        return reasons

    def _tagged(self, one: Mapping[str, Any], keyword: str) -> list[Any]:
        """The alternatives; with a discriminator, each has to have its tag."""
        discriminator = one.get("discriminator")
        tag = discriminator.get("propertyName") if isinstance(discriminator, Mapping) else None
        if not isinstance(tag, str):
            return list(one[keyword])
        found = [referred(each["$ref"], self._old) if _is_reference(each) else each for each in one[keyword]]
        return [
            {**each, "required": [*each.get("required", ()), tag]} if isinstance(each, Mapping) else each
            for each in found
        ]

    def _one_of_many(
        self, one: Mapping[str, Any], variants: Sequence[Any], go: _Step, whole: bool, *, apart: bool
    ) -> list[str]:
        """One of the new alternatives has to take it; of those of which only one may hold, no other can."""
        closest: list[str] | None = None
        for place, each in enumerate(variants):
            found = go(one, each, whole)
            others = [*variants[:place], *variants[place + 1 :]] if apart else []
            if not found and all(self._disjoint(one, other) for other in others):
                return []
            if not found:
                return [_at(go.path, "cannot tell which one of several it is now")]
            if closest is None or len(found) < len(closest):
                closest = found
        kinds = one.get("type", "data")
        if len(variants) == 1 and closest:
            return closest
        return [
            _at(go.path, f"{_shown(one['const']) if _SINGLE in one else kinds} fits none of the alternatives")
        ]

    def _disjoint(self, one: Any, other: Any) -> bool:
        """Whether no value is both."""
        mine, theirs = resolved(one, self._old), resolved(other, self._new)
        if theirs is False:
            return True
        if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping):
            return False
        kinds = [set(_kinds(each)) for each in (mine, theirs)]
        if not kinds[0] & kinds[1]:
            return True
        for name in {*mine.get("required", ()), *theirs.get("required", ())}:
            values = [
                _values(resolved(each.get("properties", {}).get(name), root))
                for each, root in ((mine, self._old), (theirs, self._new))
            ]
            if values[0] is not None and values[1] is not None and not values[0] & values[1]:
                return kinds == [{"object"}, {"object"}]
        return False

    def _leaf(
        self, one: Mapping[str, Any], other: Mapping[str, Any], go: _Step, whole: bool
    ) -> Iterator[str]:
        """Keyword by keyword. `one` has at most one type, and neither has alternatives."""
        path, kind = go.path, one.get("type")
        wanted = _kinds(other)
        if "type" in other and not set(_kinds(one)) <= set(wanted):
            was = kind or "any"
            yield _at(path, f"was {was}, is {' or '.join(_listed(other['type']))} now")
            return
        allowed = self._once(_values, other)
        if allowed is not None and not ("const" in one and frozen(one["const"]) in allowed):
            only = "is one of a few values now, was any"
            yield _at(path, f"{_shown(one['const'])} is not allowed any more" if "const" in one else only)
        if kind is None or kind in _NUMBERS:
            yield from (_at(path, each) for each in _numbers(one, other))
        for keyword, kinds in _BOUNDS.items():
            if keyword in other and (kind is None or kind in kinds):
                yield from (_at(path, each) for each in _bound(keyword, one.get(keyword), other[keyword]))
        for keyword, kinds in _SAME.items():
            if other.get(keyword) not in (None, False, one.get(keyword)) and (kind is None or kind in kinds):
                yield _at(path, f"{keyword} is {_shown(other[keyword])} now, was {_shown(one.get(keyword))}")
        for keyword in sorted(set(other) - _READ - _ANNOTATIONS):
            same = frozen(one.get(keyword)) == frozen(other[keyword]) and _is_alone(other[keyword])
            if not (same and keyword in _ALONE):
                yield _at(path, f"cannot tell whether {keyword!r} allows all that was allowed")
        if kind is None or kind == "array":
            yield from self._items(one, other, go)
        if kind is None or kind == "object":
            yield from self._object(one, other, go, whole)

    def _items(self, one: Mapping[str, Any], other: Mapping[str, Any], go: _Step) -> Iterator[str]:
        mine, theirs = one.get("prefixItems", []), other.get("prefixItems", [])
        rest = one.get("items", True), other.get("items", True)
        most = one.get("maxItems")
        for place in range(max(len(mine), len(theirs))):
            if most is None or place < most:
                was = mine[place] if place < len(mine) else rest[0]
                now = theirs[place] if place < len(theirs) else rest[1]
                yield from go.into(was, now, f"[{place}]")
        if most is None or most > max(len(mine), len(theirs)):
            yield from go.into(*rest, "[]")

    def _object(
        self, one: Mapping[str, Any], other: Mapping[str, Any], go: _Step, whole: bool
    ) -> Iterator[str]:
        mine = dict.fromkeys(one.get("required", ()), True) | one.get("properties", {})
        theirs = other.get("properties", {})
        closed = whole and "properties" in one and "patternProperties" not in one
        rest = one.get("additionalProperties", not closed)
        if "patternProperties" in one:
            rest = True
        for name in other.get("required", ()):
            if name not in one.get("required", ()):
                yield _at(_join(go.path, name), "is required now")
        for name in dict.fromkeys((*mine, *theirs)):
            now = theirs.get(name, other.get("additionalProperties", True))
            yield from go.into(mine.get(name, rest), now, name)
        yield from go.into(rest, other.get("additionalProperties", True), "*")


class _Step:
    """A comparison one step further."""

    def __init__(self, comparison: _Comparison, path: str, depth: int, level: int) -> None:
        self._comparison, self.path, self._depth, self._level = comparison, path, depth, level

    def __call__(self, one: Any, other: Any, whole: bool) -> list[str]:
        """Of the same data."""
        return self._comparison.compare(one, other, self.path, self._depth, whole=whole, level=self._level)

    def into(self, one: Any, other: Any, name: str) -> list[str]:
        """Of a part of the data."""
        inner = _join(self.path, name)
        return self._comparison.compare(one, other, inner, self._depth + 1, level=self._level)


def _conjuncts(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return schemas of which all must hold; together they say what the schema says."""
    own = {name: each for name, each in node.items() if name not in _SPLIT and name not in _ANNOTATIONS}
    found: list[Mapping[str, Any]] = [own] if own else []
    found += [{keyword: node[keyword]} for keyword in (*_EITHER, "$ref") if keyword in node]
    return found + [
        {"not": {}} if each is False else {} if each is True else each for each in node.get("allOf", ())
    ]


def _is_alone(node: Any) -> bool:
    """Whether a schema refers to nothing outside of it."""
    return '"$' not in json.dumps(node)


def _is_reference(node: Any) -> bool:
    """Whether a schema is a reference and nothing else."""
    return isinstance(node, Mapping) and set(node) - _ANNOTATIONS == {"$ref"}


def _of_value(value: Any) -> dict[str, Any]:
    """Return a schema of this value alone, in every keyword that could tell."""
    found = {_SINGLE: True, "const": value, "type": kind_of(value)}
    match value:
        case bool():
            return found
        case int() | float():
            return found | {"minimum": value, "maximum": value, "multipleOf": abs(value) or 1}
        case str():
            return found | {"minLength": len(value), "maxLength": len(value)}
    return found


def _kinds(node: Mapping[str, Any]) -> list[str]:
    """Return the types that a schema allows; a number may be an integer."""
    found = _listed(node.get("type", list(TYPES)))
    return [*found, "integer"] if "number" in found else found


def _listed(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _values(node: Any) -> set[str] | None:
    """Return the only values that a schema allows, frozen; None where it does not list them."""
    if not isinstance(node, Mapping):
        return None
    found = [{frozen(each) for each in node["enum"]}] if "enum" in node else []
    found += [{frozen(node["const"])}] if "const" in node else []
    return set.intersection(*found) if found else None


def _numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    for low, keywords in ((True, ("minimum", "exclusiveMinimum")), (False, ("maximum", "exclusiveMaximum"))):
        was, now = _limit(one, keywords, low), _limit(other, keywords, low)
        if now is not None and (was is None or (was < now if low else was > now)):
            yield f"{keywords[0]} is {now[0]} now, was {'none' if was is None else was[0]}"
    step = other.get("multipleOf")
    if step is not None and not _is_multiple(one.get("multipleOf"), step):
        yield f"multipleOf is {step} now, was {one.get('multipleOf', 'none')}"


def _limit(node: Mapping[str, Any], keywords: tuple[str, str], low: bool) -> tuple[Any, int] | None:
    """Return the limit of a number, and whether it is excluded, so that the narrower of two sorts as such."""
    outside = 1 if low else -1
    found = [(node[each], outside * (each == keywords[1])) for each in keywords if each in node]
    pick: Callable[..., tuple[Any, int]] = max if low else min
    return pick(found) if found else None


def _is_multiple(was: Any, step: Any) -> bool:
    if was == step:
        return True
    return isinstance(was, int) and isinstance(step, int) and was % step == 0


def _bound(keyword: str, was: Any, now: Any) -> Iterator[str]:
    low = keyword.startswith("min")
    if low and now == 0:
        return
    if was is None or (was < now if low else was > now):
        yield f"{keyword} is {now} now, was {'none' if was is None else was}"


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False)[:60]


def _at(path: str, what: str) -> str:
    return f"{path or 'the data'}: {what}"


def _join(path: str, name: str) -> str:
    name = name[:60]
    return f"{path}{name}" if name.startswith("[") else f"{path}.{name}" if path else name
