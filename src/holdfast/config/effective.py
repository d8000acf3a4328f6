"""The effective configuration: every value, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from holdfast.config.load import Loaded
from holdfast.config.problems import DEFAULT, Origin, Path, show_path
from holdfast.config.sections import Section


class Setting(NamedTuple):
    """One value. Secrets in URLs are masked."""

    key: str
    value: Any
    origin: Origin


def settings(loaded: Loaded) -> list[Setting]:
    """Everything that holds, in the order of the reference."""
    return [
        Setting(show_path(path), value, _origin(loaded, path)) for path, value in _leaves(loaded.config, ())
    ]


def _leaves(section: Section, path: Path) -> Iterator[tuple[Path, Any]]:
    dumped = section.model_dump(mode="json", exclude_unset=False)
    for name, value in section:
        below = (*path, name)
        if isinstance(value, Section):
            yield from _leaves(value, below)
        elif isinstance(value, dict) and value:
            yield from (((*below, key), _short(each)) for key, each in value.items())
        elif isinstance(value, list) and value and isinstance(value[0], Section):
            yield from (((*below, place), _short(each)) for place, each in enumerate(value))
        else:
            yield below, dumped[name]


def _short(value: Any) -> Any:
    """An entry of a mapping or list as somebody would write it."""
    if not isinstance(value, Section):
        return value
    written: dict[str, Any] = value.model_dump(mode="json", exclude_unset=True)
    return written["max_age"] if list(written) == ["max_age"] else written


def _origin(loaded: Loaded, path: Path) -> Origin:
    return loaded.layers.origin(path) if loaded.layers.written(path) == path else DEFAULT
