"""Layers of values, each with the place that it comes from, and the problems found in them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from holdfast.model.errors import InvalidInput

Path = tuple[str | int, ...]
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value comes from. Line and column are there for a file's, both counted from 1."""

    kind: Literal["file", "environment", "flag", "default"]
    name: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}:{self.column}"


DEFAULT = ValueOrigin("default", "default")


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One thing that is wrong."""

    origin: ValueOrigin
    path: Path
    message: str
    """What is wrong, with the value, and what to do."""

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.origin), show_path(self.path), self.message) if part)

    def to_json(self) -> dict[str, Any]:
        """The problem in JSON's own types."""
        return {
            "origin": self.origin.name,
            "line": self.origin.line,
            "column": self.origin.column,
            "path": show_path(self.path),
            "message": self.message,
        }


class InvalidConfig(InvalidInput):
    """A configuration that cannot be used."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))


def show_path(path: Path) -> str:
    """A path as people write it: `retention."gbe.events.*"`, `archiver.streams[0].bucket`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += ("." if text else "") + (step if _PLAIN.fullmatch(step) else f'"{step}"')
    return text


@dataclass(slots=True)
class Layers:
    """The values that are on top, and where they come from."""

    base: ValueOrigin = DEFAULT
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[Path, ValueOrigin] = field(default_factory=dict)
    values: dict[Path, ValueOrigin] = field(default_factory=dict)

    def put(self, origin: ValueOrigin, data: Mapping[str, Any], path: Path = ()) -> None:
        """Put values on top. Mappings are joined; anything else takes the place of what was there."""
        for key, value in data.items():
            below = (*path, key)
            if isinstance(value, Mapping):
                if not isinstance(self.value(path).get(key), dict):
                    self._replace(below, {}, origin)
                self.put(origin, value, below)
            else:
                self._replace(below, value, origin)

    def origin(self, path: Path, *, key: bool = False) -> ValueOrigin:
        """Where the value (or its key) at a path, or else what is nearest above it, comes from."""
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
        return self.values.get(path, self.base)

    def written(self, path: Path) -> Path:
        """The part of a path that somebody wrote; a value that was written short has nothing below it."""
        here: Any = self.data
        for length, step in enumerate(path):
            known = here if isinstance(here, dict) else range(len(here)) if isinstance(here, list) else ()
            if step not in known:
                return path[:length]
            here = here[step]
        return path

    def value(self, path: Path) -> Any:
        """The value at a written path."""
        here: Any = self.data
        for step in path:
            here = here[step]
        return here

    def _replace(self, path: Path, value: Any, origin: ValueOrigin) -> None:
        self.value(path[:-1])[path[-1]] = value
        for places in (self.keys, self.values):
            for below in [each for each in places if each[: len(path)] == path]:
                del places[below]
        self.values[path] = origin
