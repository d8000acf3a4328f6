"""The projection: what goes into each column of a table, as SQL over the rows of a segment.

The dialect is DuckDB's; another warehouse can have it computed by a DuckDB in memory. The rows have
`batch` beside their own columns; the parameter is $now.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.pipeline.warehouse.tables import FIXED, Column, Table, Typed

_PARAMETERS = {"ingested_at": "$now"}
_TYPES = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "time": "TIMESTAMP WITH TIME ZONE",
    "date": "DATE",
    "json": "VARCHAR",
}


def projection(table: Table) -> dict[str, str]:
    """By column, in order. What a type cannot hold is an error; in a column that was learned it is null."""
    fixed = {name: _PARAMETERS.get(name, f'"{name}"') for name in FIXED}
    mapped = {column.name: _value(column) for column in table.columns}
    return fixed | mapped | {each.name: _typed(each, table.typed) for each in table.typed}


def _typed(column: Typed, columns: Sequence[Typed]) -> str:
    """All fields of one type are taken from the data at once: DuckDB computes what is the same only once."""
    structure = ", ".join(f'"{each.field}": "{each.type}"' for each in columns if each.type == column.type)
    return f"""TRY(json_transform(data, '{{{structure}}}'))."{column.field}\""""


def mapped(table: Table) -> str:
    """Whether a row has what its data says in the columns that are computed from it, as SQL.

    Null is right in rows from before the first that has a value: they are older than the column.
    """
    expected = {column.name: _expected(column) for column in table.columns}
    expected |= {each.name: _typed(each, table.typed) for each in table.typed}
    return " AND ".join(map(_is_right, expected, expected.values())) or "true"


def first_values(columns: Iterable[str]) -> str:
    """Since when each of these columns has values, as SQL: what `mapped` takes as `$first_NAME`."""
    return ", ".join(f'min(ingested_at) FILTER (WHERE "{name}" IS NOT NULL)' for name in columns)


def _is_right(column: str, expected: str) -> str:
    older = f'"{column}" IS NULL AND coalesce(ingested_at < $first_{column}, true)'
    return f'("{column}" IS NOT DISTINCT FROM {expected} OR ({older}))'


def _expected(column: Column) -> str:
    """What the data says; null where it does not fit."""
    if column.type in ("json", "text"):
        return f"TRY({_value(column)})"
    text = f"TRY(json_extract_string(data, '{column.path}'))"
    cast = f"TRY(CAST({text} AS {duck_type(column.type)}))"
    return f"CASE WHEN contains({text}, '.') THEN NULL ELSE {cast} END" if column.type == "integer" else cast


def duck_type(name: str) -> str:
    """DuckDB's name for a type of ours."""
    return _TYPES.get(name) or name.upper().replace(" ", "")


def _value(column: Column) -> str:
    path = column.path
    if column.type == "json":
        return f"CAST(json_extract(data, '{path}') AS VARCHAR)"
    text = f"json_extract_string(data, '{path}')"
    if column.type == "text":
        return text
    cast = f"CAST({text} AS {duck_type(column.type)})"
    if column.type != "integer":
        return cast
    # DuckDB would round.
    wrong = f"error('column {column.name}: ' || {text} || ' is no integer')"
    return f"CASE WHEN contains({text}, '.') THEN {wrong} ELSE {cast} END"
