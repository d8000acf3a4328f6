"""Views: each channel as a table of its own, `orders`, with its fields as typed columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import orjson

from holdfast.pipeline.warehouse.shape import JSON, NULL, TEXT, Shape
from holdfast.pipeline.warehouse.tables import FIXED, RESERVED, Typed

_FIRST = ("id", "type", "key", "time")
_HEADERS = "TRY(CAST(headers::JSON AS MAP(VARCHAR, VARCHAR))) AS headers"
_LAST = tuple(name for name in FIXED if name not in (*_FIRST, "headers", "transaction_hash"))


def view_name(channel: str, tables: Collection[str]) -> str:
    """The view of a channel: its name, unless a table has it."""
    return f"{channel}_typed" if channel in (*tables, *RESERVED) else channel


def view(
    name: str,
    table: str,
    channel: str,
    fields: Mapping[str, Sequence[Shape]],
    stored: Collection[str] = (),
    *,
    temporary: bool = False,
) -> str:
    """The statement that makes the view. `fields` have the shapes that each has had, the last one first;
    `stored` are the columns of the table. What a type cannot hold is null there, and whole in `data`. A field
    that is called like a column of every table has `data_` before its name."""
    taken = {each.casefold() for each in FIXED}
    columns = [quoted(each) for each in _FIRST]
    for field, kinds in fields.items():
        column = f"data_{field}" if field.casefold() in taken else field
        if column.casefold() not in taken:
            taken.add(column.casefold())
            columns.append(f"{_column(field, kinds, stored)} AS {quoted(column)}")
    columns += [_HEADERS, *map(quoted, _LAST)]
    kind = "TEMP VIEW" if temporary else "VIEW"
    where = f"WHERE channel = {literal(channel)}"
    return (
        f"CREATE OR REPLACE {kind} {quoted(name)} AS SELECT {', '.join(columns)} FROM {quoted(table)} {where}"  # noqa: S608 - quoted
    )


def _column(field: str, kinds: Sequence[Shape], stored: Collection[str]) -> str:
    """From the columns in which the field stands, by its types, where all of them are stored."""
    names = [Typed(field, kind).name for kind in kinds if isinstance(kind, str)]
    if not names or len(names) < len(kinds) or not set(names) <= set(stored):
        return _value(field, kinds[0] if kinds else NULL)
    first, *others = map(quoted, names)
    casts = [f"CAST({each} AS {kinds[0]})" for each in others]
    return f"coalesce({first}, {', '.join(casts)})" if casts else first


def _value(field: str, shape: Shape) -> str:
    """A field of the data, as SQL."""
    pointer = literal("/" + field.replace("~", "~0").replace("/", "~1"))
    if isinstance(shape, str):
        text = f"TRY(json_extract_string(data, {pointer}))"
        return text if shape in (TEXT, JSON, NULL) else f"TRY_CAST({text} AS {shape})"
    structure = literal(orjson.dumps(_structure(shape)).decode())
    return f"TRY(json_transform(json_extract(data, {pointer}), {structure}))"


def _structure(shape: Shape) -> Shape:
    match shape:
        case dict():
            return {name: _structure(each) for name, each in shape.items()}
        case [each]:
            return [_structure(each)]
    return JSON if shape == NULL else shape


def quoted(name: str) -> str:
    """A name in a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in a statement."""
    return "'" + text.replace("'", "''") + "'"
