"""Tables: which channel goes into which table, which parts of the data become columns of their own, and the
SQL that computes them from the rows of a segment.

The dialect is DuckDB's; for another warehouse a DuckDB in memory computes it. The rows have `batch` beside
their own columns; the parameter is $now.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import orjson

from holdfast.model.errors import InvalidInput
from holdfast.model.names import compile_pattern, most_specific
from holdfast.pipeline.warehouse.structure import NULL, Structure, declared

DEFAULT_TABLE = "events"
FIXED = (
    "channel",
    "partition",
    "position",
    "id",
    "source",
    "type",
    "key",
    "time",
    "headers",
    "data",
    "data_base64",
    "transaction_id",
    "transaction_hash",
    "ingested_at",
    "batch",
)
"""What every table has."""
DAY = "event_day"
"""What a Delta table is partitioned by."""
RESERVED = ("failed_events", "holdfast_ledger", "holdfast_turn", "holdfast_schemas", "all_events")
TYPES = ("text", "integer", "number", "boolean", "time", "date", "json")

STORED = ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR", "TIMESTAMPTZ", "DATE")
"""Types of fields that are stored in columns of their own."""

_PARAMETERS = {"ingested_at": "$now"}
_DUCKDB_TYPES = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "time": "TIMESTAMP WITH TIME ZONE",
    "date": "DATE",
    "json": "VARCHAR",
}
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_FIELD = re.compile(r"[a-z][a-z0-9_]{0,47}")
_DECIMAL = re.compile(r"decimal\(\d{1,2},\s*\d{1,2}\)")
_STEP = re.compile(r"\.([A-Za-z0-9_]+)|\.\"([^\"\\']+)\"|\[(\d+)\]")
_PATH = re.compile(rf"\$(?:{_STEP.pattern})+")


@dataclass(frozen=True, slots=True)
class Column:
    """A part of the JSON data as a column. What the data does not have is null."""

    name: str
    path: str
    """`$.user.name`, `$.items[0]`, `$."odd name"`."""
    type: str = "text"

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in (*FIXED, DAY):
            raise InvalidInput(
                f"column {self.name!r} is not usable: write lower-case letters, digits and '_', "
                "and none of " + ", ".join((*FIXED, DAY))
            )
        if not _PATH.fullmatch(self.path):
            raise InvalidInput(
                f"column {self.name!r}: {self.path!r} is no path; write $.user.name or $.items[0]"
            )
        if self.type not in TYPES and not _DECIMAL.fullmatch(self.type):
            raise InvalidInput(
                f"column {self.name!r}: no type {self.type!r}; use {', '.join(TYPES)} or decimal(18,3)"
            )

    def find(self, data: Any) -> Any:
        """The part of a JSON value that the path means; None where there is none."""
        for name, quoted, place in _STEP.findall(self.path):
            try:
                data = data[int(place) if place else name or quoted]
            except (LookupError, TypeError):
                return None
        return data


class TypedColumn(NamedTuple):
    """A field of the data that is stored in a column of its own, in rows where it fits this type."""

    field: str
    type: str
    """DuckDB's name of it."""

    @property
    def name(self) -> str:
        """The column: `total__double`."""
        return f"{self.field}__{self.type.lower()}"

    @property
    def is_usable(self) -> bool:
        """Whether every warehouse can have it."""
        return self.type in STORED and _FIELD.fullmatch(self.field) is not None


@dataclass(frozen=True, slots=True)
class Table:
    """A table's name and its own columns. `{channel}` in the name makes one table for each channel."""

    name: str = DEFAULT_TABLE
    columns: tuple[Column, ...] = ()
    typed: tuple[TypedColumn, ...] = ()
    """What was learned of its channels' data."""

    @property
    def computed(self) -> list[str]:
        """The columns whose values follow from the data."""
        return [*(each.name for each in self.columns), *(each.name for each in self.typed)]

    def within(self, names: Collection[str]) -> Table:
        """With those of its columns that are there."""
        columns = tuple(each for each in self.columns if each.name in names)
        return Table(self.name, columns, tuple(each for each in self.typed if each.name in names))

    def named_for(self, channel: str) -> Table:
        """The table of one channel."""
        name = self.name.replace("{channel}", re.sub(r"[^a-z0-9]", "_", channel))
        if not _NAME.fullmatch(name) or name in RESERVED:
            raise InvalidInput(
                f"table {name!r} is not usable: write at most 63 lower-case letters, digits and '_'"
            )
        return Table(name, self.columns)


@dataclass(frozen=True, slots=True)
class Tables:
    """By pattern; the most specific one decides. A channel that none selects goes into `events`."""

    by_pattern: Mapping[str, Table] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    """JSON Schemas of channels as text, in the same way."""
    stored: dict[str, str] = field(default_factory=dict)
    """Those that were declared to the store, by channel: for channels that `declared` has nothing of."""

    def __post_init__(self) -> None:
        for pattern, table in self.by_pattern.items():
            compile_pattern(pattern)
            names = [column.name for column in table.columns]
            if len(set(names)) != len(names):
                raise InvalidInput(f"table {table.name!r}: two columns have the same name")

    def of(self, channel: str) -> Table:
        """The table of a channel."""
        pattern = most_specific(self.by_pattern, channel)
        return (Table() if pattern is None else self.by_pattern[pattern]).named_for(channel)

    def declared_for(self, channel: str) -> Structure:
        """What the JSON Schema of a channel says of its data; `NULL` where there is none."""
        pattern = most_specific(self.declared, channel)
        schema = self.stored.get(channel) if pattern is None else self.declared[pattern]
        return NULL if schema is None else _structure_of(schema)


@cache
def _structure_of(schema: str) -> Structure:
    return declared(orjson.loads(schema))


def key_of(name: str, headers: Mapping[str, str], data: str | None, columns: Iterable[Column]) -> str | None:
    """A key of a failed event, such as `session_key`: from its headers, or from its data by the mapping."""
    if name in headers:
        return headers[name]
    found = [column for column in columns if column.name == name]
    if not found or data is None:
        return None
    value = found[0].find(orjson.loads(data))
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def projection(table: Table) -> dict[str, str]:
    """By column, in order. What a type cannot hold is an error; in a column that was learned it is null."""
    fixed = {name: _PARAMETERS.get(name, f'"{name}"') for name in FIXED}
    mapped = {column.name: _value(column) for column in table.columns}
    return fixed | mapped | {each.name: _typed(each, table.typed) for each in table.typed}


def _typed(column: TypedColumn, columns: Sequence[TypedColumn]) -> str:
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
    return _DUCKDB_TYPES.get(name) or name.upper().replace(" ", "")


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
