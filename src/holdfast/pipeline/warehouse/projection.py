"""The projection: what goes into each column of a table, as SQL over the rows of a segment.

The dialect is DuckDB's; another warehouse can have it computed by a DuckDB in memory. The parameters are
$batch, $channel, $partition and $now.
"""

from __future__ import annotations

from holdfast.pipeline.warehouse.tables import FIXED, Column, Table

_PARAMETERS = {"batch": "$batch", "channel": "$channel", "partition": "$partition", "ingested_at": "$now"}
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
    """By column, in order. A value that its type cannot hold is an error, never a null."""
    fixed = {name: _PARAMETERS.get(name, f'"{name}"') for name in FIXED}
    return fixed | {column.name: _value(column) for column in table.columns}


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
