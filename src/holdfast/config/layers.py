"""Layers: values laid over each other, each with the place that it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.config.problems import DEFAULT, Origin, Path


@dataclass(slots=True)
class Layers:
    """The values that are on top, and where they come from."""

    base: Origin = DEFAULT
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[Path, Origin] = field(default_factory=dict)
    values: dict[Path, Origin] = field(default_factory=dict)

    def lay(self, origin: Origin, data: Mapping[str, Any], path: Path = ()) -> None:
        """Put values on top. Mappings are joined; anything else takes the place of what was there."""
        for key, value in data.items():
            below = (*path, key)
            if isinstance(value, Mapping):
                if not isinstance(self.value(path).get(key), dict):
                    self._replace(below, {}, origin)
                self.lay(origin, value, below)
            else:
                self._replace(below, value, origin)

    def origin(self, path: Path, *, key: bool = False) -> Origin:
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

    def _replace(self, path: Path, value: Any, origin: Origin) -> None:
        self.value(path[:-1])[path[-1]] = value
        for places in (self.keys, self.values):
            for below in [each for each in places if each[: len(path)] == path]:
                del places[below]
        self.values[path] = origin
