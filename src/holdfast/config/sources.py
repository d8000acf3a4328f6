"""The sources of a configuration: a YAML file, and the environment. Only plain data is built from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import yaml
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError
from yaml.nodes import CollectionNode, MappingNode, ScalarNode

from holdfast.config.config import Config, WalSection
from holdfast.config.layers import ConfigProblem, Path, ValueOrigin
from holdfast.model.redact import mask

PREFIX, BETWEEN = "HOLDFAST_", "__"
WAL_PREFIX = "CONSUMER_WAL_"
_WAL = {WAL_PREFIX + name.upper(): name for name in WalSection.model_fields}
# What the WAL of a BadgerDB was set up with, and what takes its place.
_REPLACED = {
    "SYNC_WRITES": "every write is synced before it is acknowledged, whatever this says",
    "MEMTABLE_SIZE": "there is no memtable; ingest.batch_rows (HOLDFAST_INGEST__BATCH_ROWS) bounds a segment",
    "VLOG_SIZE": "there is no value log; ingest.wal.max_bytes (CONSUMER_WAL_MAX_BYTES) bounds the WAL",
    "NUM_COMPACTORS": "one thread of the driver compacts (ingest.compaction); ingest.wal.confirmed_retention "
    "(CONSUMER_WAL_CONFIRMED_RETENTION) says when a loaded batch is removed",
    "COMPRESSION": "segments are always compressed, with zstd",
}
Variable = tuple[ValueOrigin, dict[str, Any]]
_LONGEST_VALUE = 80
_DEEPEST = 50
_LARGEST = 2**64
# What PyYAML raises for a text that is not what its tag says.
_UNREADABLE = (yaml.YAMLError, ValueError, LookupError, AttributeError, OverflowError)


class _Loader(yaml.SafeLoader):
    """Composes nodes, but not without end: each level of a file costs several of Python's own."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """One node with all that is in it."""
        if self._depth > _DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML has no types here
            raise yaml.composer.ComposerError(None, None, f"it nests deeper than {_DEEPEST} levels", mark)
        self._depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


@dataclass(slots=True)
class Document:
    """What a file says. `keys` and `values` tell where each key and each value stands."""

    name: str
    data: dict[str, Any] = field(default_factory=dict)
    keys: dict[Path, ValueOrigin] = field(default_factory=dict)
    values: dict[Path, ValueOrigin] = field(default_factory=dict)
    problems: list[ConfigProblem] = field(default_factory=list)

    def origin(self, mark: yaml.Mark | None) -> ValueOrigin:
        """A place in this file."""
        return ValueOrigin("file", self.name) if mark is None else self.origin_at(mark.line, mark.column)

    def origin_at(self, line: int, column: int) -> ValueOrigin:
        """A place, by line and column counted from 0."""
        return ValueOrigin("file", self.name, line + 1, column + 1)

    def add_problem(self, origin: ValueOrigin, path: Path, message: str) -> None:
        """Note a problem."""
        self.problems.append(ConfigProblem(origin, path, message))


def read_file(file: File) -> Document:
    """The file's content. What is wrong with its form stands among the problems."""
    document = Document(str(file))
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        document.add_problem(
            document.origin(None), (), f"the file cannot be read: {error.strerror}; check its name"
        )
    except UnicodeDecodeError as error:
        document.add_problem(
            document.origin(None), (), f"byte {error.start} is not UTF-8; save the file in that encoding"
        )
    except ValueError as error:  # a name that no file has
        document.add_problem(document.origin(None), (), f"the file cannot be read: {error}; check its name")
    else:
        _parse(text, document)
    return document


def _parse(text: str, document: Document) -> None:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        document.add_problem(document.origin(error.problem_mark), (), f"this is not YAML: {problem}")
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = document.origin_at(before.count("\n"), len(before) - before.rfind("\n") - 1)
        document.add_problem(
            place, (), f"the character U+{error.character:04X} has no place in YAML; remove it"
        )
    else:
        if isinstance(root, MappingNode):
            document.data = _Reader(document).mapping(root, ())
        elif root is not None and not (isinstance(root, ScalarNode) and not root.value):
            document.add_problem(
                document.origin(root.start_mark), (), "there are no keys; write a mapping such as 'sweeper:'"
            )


class _Reader:
    """Turns nodes into values."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._scalars = yaml.constructor.SafeConstructor()
        self._seen: set[int] = set()

    def mapping(self, node: MappingNode, path: Path) -> dict[str, Any]:
        """Keys and values; a key that is there already is a problem, and the first one stands."""
        found: dict[str, Any] = {}
        for key, value in node.value:
            place = self._document.origin(key.start_mark)
            if not isinstance(key, ScalarNode):
                self._document.add_problem(
                    place, path, "a key is a plain word; a list or a mapping cannot be one"
                )
                continue
            below = (*path, key.value)
            if key.value in found:
                first = self._document.keys[below].line
                self._document.add_problem(
                    place, below, f"this key is on line {first} already; keep one of them"
                )
                continue
            self._document.keys[below] = place
            found[key.value] = self._value(value, below)
        return found

    def _value(self, node: ScalarNode | CollectionNode, path: Path) -> Any:
        self._document.values[path] = self._document.origin(node.start_mark)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._seen:  # an alias can stand for its own parent, or multiply without end
            place = self._document.keys.get(path, self._document.values[path])  # its own mark is its anchor's
            self._document.add_problem(place, path, "an alias stands for more than a word; write it out")
            return None
        self._seen.add(id(node))
        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        return [self._value(each, (*path, place)) for place, each in enumerate(node.value)]

    def _scalar(self, node: ScalarNode, path: Path) -> Any:
        try:
            value = self._scalars.construct_object(node)
            if not isinstance(value, int) or abs(value) < _LARGEST:
                return value
            message = f"{node.value[:40]}… is larger than any number that is used here; write a smaller one"
            self._document.add_problem(self._document.values[path], path, message)
            return None
        except _UNREADABLE:
            message = f"{node.value!r} cannot be read as {node.tag}; put it in quotes, or remove the tag"
            self._document.add_problem(self._document.values[path], path, message)
            return None


class _Variables(Config, BaseSettings):
    """The configuration as pydantic-settings knows it: which variables there are, and which hold JSON."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=BETWEEN)


class _OneVariable(EnvSettingsSource):
    """Reads one variable at a time, so that each problem can name its own."""

    def __init__(self, name: str, value: str) -> None:
        self._given = {name.lower(): value}
        super().__init__(_Variables)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._given


def variables(environ: Mapping[str, str]) -> Iterator[Variable | ConfigProblem]:
    """What each of our variables says; one with JSON for a whole section comes before those for its keys."""
    names = [name for name, value in environ.items() if name.upper().startswith(PREFIX) and value]
    for name in sorted(names, key=lambda each: (each.count(BETWEEN), each)):
        path: Path = tuple(name[len(PREFIX) :].lower().split(BETWEEN))
        origin = ValueOrigin("environment", name)
        if path[0] in Config.model_fields:
            yield _read_variable(origin, path, environ[name])
        elif len(path) > 1:  # other variables of ours have no two underscores
            known = ", ".join(Config.model_fields)
            yield ConfigProblem(origin, path, f"there is no section {path[0]!r}; use one of {known}")

    yield from (
        (ValueOrigin("environment", name), {"ingest": {"wal": {_WAL[name]: environ[name]}}})
        for name in _WAL
        if environ.get(name)
    )


def ignored_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The WAL's variables that change nothing here, each with what to use instead."""
    names = [name for name in environ if name.startswith(WAL_PREFIX) and name not in _WAL]
    known = f"there is no such setting; use one of {', '.join(_WAL)}"
    return {name: _REPLACED.get(name.removeprefix(WAL_PREFIX), known) for name in sorted(names)}


def _read_variable(origin: ValueOrigin, path: Path, value: str) -> Variable | ConfigProblem:
    try:
        found = _OneVariable(origin.name, value)()
    except SettingsError as error:
        shown = mask(repr(value))[:_LONGEST_VALUE]
        return ConfigProblem(origin, path, f"{shown} is not the JSON that is needed here: {error.__cause__}")
    except RecursionError:
        found = None
    if found is None or _deeper(found, _DEEPEST):
        return ConfigProblem(origin, path, f"its JSON nests deeper than {_DEEPEST} levels; flatten it")
    return origin, found


def _deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels == 0 or any(_deeper(each, levels - 1) for each in inside)
