"""Mutants: what our SQL, Lua and Python become where one thing in them is different.

A mutant drops a condition, a lock or an assignment, moves the bound of a comparison, or names another state.
In SQL and Lua they are found by patterns within one line: what they make of it is not valid in every case.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One file with one difference."""

    path: str
    line: int
    kind: str
    before: str
    after: str
    start: int
    end: int
    text: str
    """What stands in the place of the file's text from `start` to `end`."""

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {self.before} -> {self.after or 'nothing'}"


_Pattern = tuple[str, str, Callable[[re.Match[str]], str]]

_BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_STATES = {
    "ready": "scheduled",
    "scheduled": "ready",
    "leased": "ready",
    "done": "dead",
    "dead": "done",
    "cancelled": "done",
}
_BOUND = r"(?<=\s)(<=|>=|<|>)(?=\s)"
_STATE = r"'(ready|scheduled|leased|done|dead|cancelled)'"
_ONE = r" [+-] 1\b(?!\.)"


def _nothing(_: re.Match[str]) -> str:
    return ""


def _other_bound(found: re.Match[str]) -> str:
    return _BOUNDS[found[1]]


def _other_state(found: re.Match[str]) -> str:
    return f"'{_STATES[found[1]]}'"


_SQL: tuple[_Pattern, ...] = (
    ("conjunct", r"\bAND NOT [\w.]+(?=\s|\)|;|$)", _nothing),
    (
        "conjunct",
        r"\bAND (NOT )?[\w.]+ (=|<>|<=|>=|<|>) (%\(\w+\)s(::\w+)?|[\w.]+|'\w+')(?=\s|\)|;|$)",
        _nothing,
    ),
    ("conjunct", r"\bAND [\w.]+ IS (NOT )?NULL(?=\s|\)|;|$)", _nothing),
    ("lock", r" FOR (NO KEY )?(UPDATE|SHARE)( OF \w+)?( SKIP LOCKED)?", _nothing),
    ("assignment", r"(?<=SET )\w+ = [\w.()+' ]+, ", _nothing),
    ("assignment", r", \w+ = [\w.]+(?= WHERE| FROM|$)", _nothing),
    ("bound", _BOUND, _other_bound),
    ("state", _STATE, _other_state),
    ("one", _ONE, _nothing),
    ("not", r"\bNOT (?=EXISTS)", _nothing),
)
_LUA: tuple[_Pattern, ...] = (
    (
        "conjunct",
        r" and (not )?[\w.\[\]]+( (==|~=|<=|>=|<|>) ('\w*'|[\w.\[\]]+))?(?= then| and|\)|$)",
        _nothing,
    ),
    ("assignment", r"^\s*(redis\.call|defer)\([^()]*(\([^()]*\)[^()]*)*\)$", _nothing),
    ("bound", _BOUND, _other_bound),
    ("equal", r"(?<= )(==|~=)(?= )", lambda found: "~=" if found[1] == "==" else "=="),
    ("state", _STATE, _other_state),
    ("one", _ONE, _nothing),
    ("not", r"\bnot (?=\w)", _nothing),
)
_COMMENTS = {".sql": "--", ".lua": "--"}


def mutants(path: str, source: str) -> list[Mutant]:
    """Return every mutant of a file, in the order of its text."""
    suffix = Path(path).suffix
    if suffix == ".py":
        found = list(_of_python(path, source))
    else:
        found = list(_of_lines(path, source, _SQL if suffix == ".sql" else _LUA, _COMMENTS[suffix]))
    return sorted(found, key=lambda each: (each.start, each.kind, each.end))


def _of_lines(path: str, source: str, patterns: tuple[_Pattern, ...], comment: str) -> Iterator[Mutant]:
    at = 0
    for number, line in enumerate(source.splitlines(keepends=True), start=1):
        code = line.rstrip("\n")
        if comment in code:
            code = code[: code.index(comment)]
        for kind, pattern, change in patterns:
            for found in re.finditer(pattern, code):
                start, end = at + found.start(), at + found.end()
                yield Mutant(
                    path, number, kind, found[0].strip(), change(found).strip(), start, end, change(found)
                )
        at += len(line)


def _of_python(path: str, source: str) -> Iterator[Mutant]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(line: int, column: int) -> int:
        text = source[starts[line - 1] : starts[line]]
        return starts[line - 1] + len(text.encode()[:column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None  # noqa: PT018 - for mypy
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)

    def made(node: ast.expr, kind: str, start: int, end: int, text: str) -> Mutant:
        return Mutant(path, node.lineno, kind, source[start:end].strip(), text.strip(), start, end, text)

    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.BoolOp(values=values):
                for before, dropped in itertools.pairwise(values):
                    if source[span(before)[1] : span(dropped)[0]].strip() in ("and", "or"):
                        yield made(node, "conjunct", span(before)[1], span(dropped)[1], "")
            case ast.UnaryOp(op=ast.Not()):
                start = span(node)[0]
                yield made(node, "not", start, start + len("not "), "")
            case ast.Compare(left=left, ops=ops, comparators=rights):
                for before, operator, after in zip([left, *rights], ops, rights, strict=False):
                    start, end = span(before)[1], span(after)[0]
                    written = source[start:end].strip()
                    if written in _BOUNDS:
                        yield made(node, "bound", start, end, f" {_BOUNDS[written]} ")
                    elif isinstance(operator, ast.Eq | ast.NotEq) and written in ("==", "!="):
                        yield made(node, "equal", start, end, " != " if written == "==" else " == ")
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1) as right):
                yield made(node, "one", span(left)[1], span(right)[1], "")
            case ast.Attribute(value=ast.Name(id="State"), attr=state) if state.lower() in _STATES:
                start, end = span(node)
                yield made(node, "state", start, end, f"State.{_STATES[state.lower()].upper()}")
