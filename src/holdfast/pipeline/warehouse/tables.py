"""Tables: which channel goes into which table, and which parts of the data become columns of their own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import orjson

from holdfast.model.errors import InvalidInput
from holdfast.model.names import compile_pattern, most_specific
from holdfast.pipeline.warehouse.shape import NULL, Shape, declared

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


class Typed(NamedTuple):
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
    typed: tuple[Typed, ...] = ()
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

    def declared_for(self, channel: str) -> Shape:
        """What the JSON Schema of a channel says of its data; `NULL` where there is none."""
        pattern = most_specific(self.declared, channel)
        return NULL if pattern is None else _shape_of(self.declared[pattern])


@cache
def _shape_of(schema: str) -> Shape:
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
