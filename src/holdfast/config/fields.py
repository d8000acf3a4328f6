"""Fields: a walk over the models, for the reference and for advice about keys."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeGuard, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from holdfast.config.config import Config, Section
from holdfast.config.layers import Path, show_path
from holdfast.config.sources import BETWEEN, PREFIX
from holdfast.config.values import TypeName


class KeyRow(NamedTuple):
    """One key, as the reference has it."""

    key: str
    type: str
    default: str
    meaning: str
    variable: str


def sections() -> Iterator[tuple[str, str, list[KeyRow]]]:
    """Every section: its path, what it is, and its keys."""
    for section in _below(Config, (), PREFIX):
        if section[0] != "archival[0]":  # the same as archiver.streams[0]
            yield section


def keys_at(path: Path) -> list[str]:
    """The keys that are known at a path."""
    here: Any = Config
    for step in path:
        if _is_section(here):
            if step not in here.model_fields:
                return []
            here = here.model_fields[step].annotation
        else:
            here = (get_args(here) or (None,))[-1]  # a mapping's values, or a list's items
    return list(here.model_fields) if _is_section(here) else []


def _below(
    section: type[Section], path: Path, variable: str, *, json: bool = False
) -> Iterator[tuple[str, str, list[KeyRow]]]:
    """One section and those inside it. Inside a list or a mapping by pattern, a variable holds the whole."""
    below: list[Iterator[tuple[str, str, list[KeyRow]]]] = []
    rows = []
    for name, field in section.model_fields.items():
        kind, here = field.annotation, variable if json else f"{variable}{name.upper()}"
        if _is_section(kind):
            below.append(_below(kind, (*path, name), here if json else here + BETWEEN, json=json))
            continue
        rows.append(KeyRow(name, _type(kind, field.metadata), _default(section, name), _meaning(field), here))
        inner = (get_args(kind) or (None,))[-1]
        if _is_section(inner):
            step = 0 if get_origin(kind) is list else _type(get_args(kind)[0], ()).upper()
            below.append(_below(inner, (*path, name, step), here, json=True))
    yield show_path(path), " ".join((section.__doc__ or "").split()), rows
    for each in below:
        yield from each


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def _default(section: type[Section], name: str) -> str:
    if section.model_fields[name].is_required():
        return "required"
    shown = section.model_construct().model_dump(mode="json", include={name})[name]
    return "" if shown in (None, [], {}) else str(shown)


def _type(annotation: Any, metadata: Any) -> str:
    for each in metadata:
        if isinstance(each, TypeName):
            return each.text
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0], args[1:])
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in args)
    if origin in (Union, UnionType):
        return " or ".join(_type(each, ()) for each in args if each is not type(None))
    if origin is dict:
        return f"mapping {_type(args[0], ()).upper()}: {_type(args[1], ())}"
    if origin is list:
        return f"list of {_type(args[0], ())}"
    return (
        "section"
        if _is_section(annotation)
        else {"str": "text"}.get(annotation.__name__, annotation.__name__)
    )


def _is_section(annotation: Any) -> TypeGuard[type[Section]]:
    return isinstance(annotation, type) and issubclass(annotation, Section)
