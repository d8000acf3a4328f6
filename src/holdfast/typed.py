"""Types: how the data of an event becomes a value of a Python type and back, by pydantic.

pydantic takes as long to import as all the rest, so it is imported with the first type. Nothing in an error
that is raised here comes from the data but what the type itself names: it becomes the text of a dead letter.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from holdfast.model.errors import InvalidData, InvalidInput
from holdfast.model.event import Event
from holdfast.model.job import Job

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

Reader = Callable[[bytes], Any]
"""Makes a value of a type from the data of an event, or raises `InvalidData`."""
_UNTYPED = ("Any", "Event", "Job", "object")
_SHOWN, _LONGEST = 5, 200
_SAFE = frozenset(("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "actual_length"))
_SAFE |= {"field_type", "expected", "pattern", "max_digits", "decimal_places", "whole_digits", "tz_expected"}
_SAFE |= {"class", "class_name", "discriminator", "expected_tags", "expected_schemes"}
"""What pydantic may put into a message: nothing that stands in the data."""
_OWN_WORDS = ("value_error", "assertion_error")
"""Errors in the words of the type's own validators."""


def parameter_type(annotation: Any, names: Mapping[str, Any]) -> Any | None:
    """Return the type that a handler's first parameter asks for; None where it takes the event.

    `names` are those of the module in which the handler is defined, for annotations that are text. Raises
    `InvalidInput` where one cannot be found.
    """
    if annotation is inspect.Parameter.empty:
        return None
    if isinstance(annotation, str) and annotation.rpartition(".")[2] in _UNTYPED:
        return None  # which may be imported for type checkers only
    found = _evaluated(annotation, names)
    untyped = (Any, object, type(None))
    return None if found in untyped or any(map(_is_ours, (found, *get_args(found)))) else found


def _evaluated(annotation: Any, names: Mapping[str, Any]) -> Any:
    """The annotation, with names in it looked up."""
    holder = types.SimpleNamespace(__annotations__={"data": annotation})
    try:
        return get_type_hints(holder, dict(names), include_extras=True)["data"]
    except Exception as error:  # whatever evaluating an expression raises
        raise InvalidInput(
            f"takes {annotation!r}, which cannot be found: {error}; define it in the module, above the "
            "handler, and import it not only for type checkers"
        ) from None


def _is_ours(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Event | Job)


def reader(annotation: Any) -> Reader:
    """Return what makes values of a type. Raises `InvalidInput` for a type that pydantic cannot validate."""
    from pydantic import ValidationError

    adapter = _adapter(annotation)
    validate, names = adapter.validate_json, _names(adapter)

    def read(data: bytes) -> Any:
        try:
            return validate(data)
        except ValidationError as error:
            raise InvalidData(_misfit(error, names)) from None

    return read


def json_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON Schema of what a type accepts. Raises `InvalidInput` where it has none."""
    adapter = _adapter(annotation)
    try:
        return adapter.json_schema()
    except Exception as error:  # also of pydantic's own, over odd defaults
        raise InvalidInput(f"{annotation!r} has no JSON Schema: {_first_line(error)}") from None


def is_model(value: object) -> bool:
    """Return whether a value is one of a pydantic model or a dataclass."""
    kind = type(value)
    return hasattr(kind, "__pydantic_serializer__") or hasattr(kind, "__dataclass_fields__")


def dump(value: object) -> bytes:
    """Return a model or a dataclass as JSON, under the names by which it is read again.

    Raises `InvalidInput` for one that is not what its own type says.
    """
    from pydantic_core import PydanticSerializationError

    kind: Any = type(value)
    try:
        return _kept(kind).dump_json(value, by_alias=True, warnings="error")
    except PydanticSerializationError as error:
        raise InvalidInput(f"a value of {kind.__qualname__} is no JSON value: {error}") from None


@lru_cache(maxsize=256)
def _kept(kind: Hashable) -> TypeAdapter[Any]:
    return _adapter(kind)


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        adapter = TypeAdapter(annotation)
        adapter.rebuild()  # raises where it is not complete
    except (PydanticUserError, NameError, TypeError) as error:
        raise InvalidInput(
            f"{annotation!r} is no type that pydantic can validate: {_first_line(error)}"
        ) from None
    return adapter


def _names(adapter: TypeAdapter[Any]) -> frozenset[str]:
    """Every name that a type itself gives: of fields, of models, of what tells the parts of a union apart."""
    from pydantic.json_schema import GenerateJsonSchema

    class Lenient(GenerateJsonSchema):
        ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - pydantic's own

        def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> dict[str, Any]:
            return {}  # a type without a JSON Schema: it has no fields

    try:
        schemas = [adapter.json_schema(by_alias=each, schema_generator=Lenient) for each in (True, False)]
    except Exception:  # of pydantic's, over odd defaults
        return frozenset()  # every name in an error is shown as *
    return frozenset(_named(schemas))


def _named(node: Any) -> Iterator[str]:
    match node:
        case dict():
            for keyword, each in node.items():
                if keyword in ("properties", "$defs") and isinstance(each, dict):
                    yield from each
                elif keyword in ("const", "enum"):
                    yield from (
                        one for one in (each if isinstance(each, list) else [each]) if isinstance(one, str)
                    )
                yield from _named(each)
        case list():
            for each in node:
                yield from _named(each)


def _misfit(error: Any, names: frozenset[str]) -> str:
    """What does not fit, in words that are the same for all data that does not fit in the same way."""
    told: dict[str, str] = {}
    for each in error.errors(include_url=False, include_input=False):
        if each["type"] == "json_invalid":
            where = each["ctx"]["error"].rpartition(" at ")[2]
            return f"the data is not JSON, at {where}; for other data, let the handler take holdfast.Event"
        places = [part if isinstance(part, int) or part in names else "*" for part in each["loc"]]
        # Of a list only the first element that is wrong in a way is named.
        kind = ".".join("*" if isinstance(part, int) else part for part in places)
        words = _words(each)[:_LONGEST]
        shown = ".".join(map(str, places))
        told.setdefault(f"{kind}: {words}", f"{shown}: {words}" if shown else words)
        if len(told) > _SHOWN:
            break
    listed = list(told.values())[:_SHOWN] + ["…"] * (len(told) > _SHOWN)
    return f"the data does not fit {error.title[:_LONGEST]}: {'; '.join(listed)}"


def _words(detail: ErrorDetails) -> str:
    safe = detail["type"] in _OWN_WORDS or set(detail.get("ctx", ())) <= _SAFE
    return detail["msg"] if safe else detail["type"]


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
