"""Problems of a configuration: where each is, what it is, and what to do. All of them at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.model.errors import InvalidInput

Path = tuple[str | int, ...]
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from. Line and column are there for a file's, both counted from 1."""

    kind: Literal["file", "environment", "flag", "default"]
    name: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.name if self.line is None else f"{self.name}:{self.line}:{self.column}"


DEFAULT = Origin("default", "default")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    origin: Origin
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

    def __init__(self, problems: Sequence[Problem]) -> None:
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
