"""A YAML file as plain values, with the place of each. Only plain data is built from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import yaml
from yaml.nodes import CollectionNode, MappingNode, ScalarNode

from holdfast.config.problems import Origin, Path, Problem

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
    keys: dict[Path, Origin] = field(default_factory=dict)
    values: dict[Path, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, mark: yaml.Mark | None) -> Origin:
        """A place in this file."""
        return Origin("file", self.name) if mark is None else self.at(mark.line, mark.column)

    def at(self, line: int, column: int) -> Origin:
        """A place, by line and column counted from 0."""
        return Origin("file", self.name, line + 1, column + 1)

    def refuse(self, origin: Origin, path: Path, message: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(origin, path, message))


def read(file: File) -> Document:
    """The file's content. What is wrong with its form stands among the problems."""
    document = Document(str(file))
    try:
        text = file.read_text("utf-8")
    except OSError as error:
        document.refuse(
            document.place(None), (), f"the file cannot be read: {error.strerror}; check its name"
        )
    except UnicodeDecodeError as error:
        document.refuse(
            document.place(None), (), f"byte {error.start} is not UTF-8; save the file in that encoding"
        )
    except ValueError as error:  # a name that no file has
        document.refuse(document.place(None), (), f"the file cannot be read: {error}; check its name")
    else:
        _parse(text, document)
    return document


def _parse(text: str, document: Document) -> None:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        document.refuse(document.place(error.problem_mark), (), f"this is not YAML: {problem}")
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = document.at(before.count("\n"), len(before) - before.rfind("\n") - 1)
        document.refuse(place, (), f"the character U+{error.character:04X} has no place in YAML; remove it")
    else:
        if isinstance(root, MappingNode):
            document.data = _Reader(document).mapping(root, ())
        elif root is not None and not (isinstance(root, ScalarNode) and not root.value):
            document.refuse(
                document.place(root.start_mark), (), "there are no keys; write a mapping such as 'sweeper:'"
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
            place = self._document.place(key.start_mark)
            if not isinstance(key, ScalarNode):
                self._document.refuse(place, path, "a key is a plain word; a list or a mapping cannot be one")
                continue
            below = (*path, key.value)
            if key.value in found:
                first = self._document.keys[below].line
                self._document.refuse(place, below, f"this key is on line {first} already; keep one of them")
                continue
            self._document.keys[below] = place
            found[key.value] = self._value(value, below)
        return found

    def _value(self, node: ScalarNode | CollectionNode, path: Path) -> Any:
        self._document.values[path] = self._document.place(node.start_mark)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._seen:  # an alias can stand for its own parent, or multiply without end
            place = self._document.keys.get(path, self._document.values[path])  # its own mark is its anchor's
            self._document.refuse(place, path, "an alias stands for more than a word; write it out")
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
            self._document.refuse(self._document.values[path], path, message)
            return None
        except _UNREADABLE:
            message = f"{node.value!r} cannot be read as {node.tag}; put it in quotes, or remove the tag"
            self._document.refuse(self._document.values[path], path, message)
            return None
