"""The schemas of channels: what was learned of their data, version by version, kept in the warehouse itself.
Each channel has a view, such as `orders`, with its fields as typed columns.

A batch is examined before it is loaded, so that a schema covers every row that is there; one with a row that
cannot go in changes no schema. To examine it again changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb
import orjson
import pyarrow as pa

from holdfast.model.sql_files import load_queries
from holdfast.pipeline.warehouse.structure import (
    JSON,
    NULL,
    TEXT,
    Structure,
    StructureLimiter,
    changes,
    widened,
)
from holdfast.pipeline.warehouse.tables import FIXED, RESERVED, Table, Tables, TypedColumn

log = logging.getLogger(__name__)
QUERIES = load_queries(__package__, "schemas.sql")
NAMED = 20
"""How many of the fields that were left out are named; more of them make no further versions."""
COLUMNS = 200
"""The most columns of a table that were learned; other fields are computed from `data` by whoever asks."""
_INTEGERS = ("UBIGINT", "BIGINT", "HUGEINT")
_LONGEST = 500
_MOST = (1 << 63) - 1
_FIRST = ("id", "type", "key", "time")
_HEADERS = "TRY(CAST(headers::JSON AS MAP(VARCHAR, VARCHAR))) AS headers"
_LAST = tuple(name for name in FIXED if name not in (*_FIRST, "headers", "transaction_hash"))


class ChannelSchema(NamedTuple):
    """A version of a channel's schema: a row of `holdfast_schemas`."""

    channel: str
    version: int
    table: str
    structure: Structure
    left_out: tuple[str, ...]
    """Fields that are no columns: too many, or of a name that is none or that another one has."""
    since: datetime
    cause: str
    """What is new in it."""

    def to_row(self) -> list[Any]:
        """As it is stored."""
        fields = orjson.dumps(self.structure).decode()
        return [self.channel, self.version, self.table, fields, list(self.left_out), self.since, self.cause]


def from_row(row: Sequence[Any]) -> ChannelSchema:
    """What `to_row` made."""
    channel, version, table, fields, left_out, since, cause = row
    return ChannelSchema(channel, version, table, orjson.loads(fields), tuple(left_out), since, cause)


def latest(schemas: Iterable[ChannelSchema]) -> dict[str, ChannelSchema]:
    """The last version of each channel's schema."""
    found: dict[str, ChannelSchema] = {}
    for each in schemas:
        if each.channel not in found or each.version > found[each.channel].version:
            found[each.channel] = each
    return found


def typed_columns(schemas: Iterable[ChannelSchema], table: Table) -> tuple[TypedColumn, ...]:
    """Which fields of its channels are stored in columns of a table: those that were learned first."""
    mapped = {each.name for each in table.columns}
    found: dict[TypedColumn, None] = {}
    for each in sorted(schemas, key=lambda each: (each.since, each.channel, each.version)):
        if each.table == table.name and isinstance(each.structure, dict):
            for field, kind in each.structure.items():
                if isinstance(kind, str) and (column := TypedColumn(field, kind)).is_usable:
                    found.setdefault(column)
    return tuple(each for each in found if each.name not in mapped)[:COLUMNS]


def history(schemas: Iterable[ChannelSchema], channel: str) -> dict[str, list[Structure]]:
    """The structures that each field of a channel has had, the last one first."""
    found: dict[str, list[Structure]] = {}
    for each in sorted(schemas, key=lambda each: each.version):
        if each.channel == channel and isinstance(each.structure, dict):
            for field, kind in each.structure.items():
                before = found.setdefault(field, [])
                if kind != NULL and (not before or before[0] != kind):
                    before.insert(0, kind)
    return found


class ChannelSchemas:
    """The schemas of all channels. `read` returns all versions that are stored; `write` adds some, and makes
    their views anew."""

    def __init__(
        self,
        tables: Tables,
        read: Callable[[], list[ChannelSchema]],
        write: Callable[[Sequence[ChannelSchema], ChannelSchemas], None],
    ) -> None:
        self._tables, self._read, self._write = tables, read, write
        self._all: list[ChannelSchema] | None = None
        self._grown: dict[str, tuple[TypedColumn, ...]] = {}

    @property
    def all(self) -> list[ChannelSchema]:
        """Every version that is known here."""
        if self._all is None:
            self._all = self._read()
        return self._all

    def of(self, channel: str) -> Table:
        """The table of a channel, with the columns that were learned."""
        return self.grown(self._tables.of(channel))

    def grown(self, table: Table) -> Table:
        """A table with the columns that were learned by now."""
        if table.name not in self._grown:
            self._grown[table.name] = typed_columns(self.all, table)
        return replace(table, typed=self._grown[table.name])

    def observe(self, seen: Mapping[str, Structure], rehearse: Callable[[], None] = lambda: None) -> None:
        """Widen the schemas of channels by what was learned of some rows, and store those that changed, after
        `rehearse`, which raises where a row cannot go in: nothing is ever narrowed again."""
        if not self._news(seen, latest(self.all)):
            return
        rehearse()
        self.forget()  # others may have written meanwhile
        if news := self._news(seen, latest(self.all)):
            self.all.extend(news)
            try:
                self._write(news, self)
            except BaseException:
                self.forget()
                raise
            for each in news:
                log.info("the schema of %s is version %s: %s", each.channel, each.version, each.cause)

    def forget(self) -> None:
        """Others may write from now on."""
        self._all = None
        self._grown.clear()

    def _news(self, seen: Mapping[str, Structure], known: Mapping[str, ChannelSchema]) -> list[ChannelSchema]:
        news: list[ChannelSchema] = []
        for channel, structure in seen.items():
            before = known.get(channel)
            old: Structure = NULL if before is None else before.structure
            given = self._tables.declared_for(channel)
            if isinstance(given, dict) and isinstance(structure, dict):  # validation has seen to these fields
                structure = {name: each for name, each in structure.items() if given.get(name, NULL) == NULL}
            bounded = StructureLimiter()
            new = bounded.cut(widened(old, widened(given, structure)))
            names = () if before is None else before.left_out
            left_out = (*names, *(each for each in bounded.left_out if each not in names))[:NAMED]
            table = self._tables.of(channel).name
            if before is not None and (new, left_out, table) == (old, names, before.table):
                continue
            version = 1 if before is None else before.version + 1
            base: Structure = {} if old == NULL else old
            moved = before is not None and before.table != table
            told = (
                [f"table {table}"] * moved
                + changes(base, new)
                + [f"{each}: left out" for each in left_out if each not in names]
            )
            cause = "; ".join(told)[:_LONGEST] or "no fields"
            news.append(ChannelSchema(channel, version, table, new, left_out, datetime.now(UTC), cause))
        return news


def learn(batches: Sequence[pa.Table]) -> dict[str, Structure]:
    """The structure of the data of each channel in some rows."""
    if not batches:
        return {}
    rows = pa.concat_tables([each.select(["channel", "data"]) for each in batches])
    seen: dict[str, Structure] = dict.fromkeys(rows["channel"].unique().to_pylist(), NULL)
    for where in ("true", QUERIES["shallow"]):
        # A DuckDB of its own: an error in here can be the end of the whole database.
        with duckdb.connect() as connection:
            connection.register("incoming", rows)
            try:
                found = connection.execute(QUERIES["structures"].format(where=where)).fetchall()
                return seen | {
                    channel: _normalised(connection, channel, orjson.loads(text), large)
                    for channel, text, large in found
                }
            except duckdb.Error as error:
                log.info("some data has no shape: %s", str(error).partition("\n")[0])
    return seen


def merged(parts: Iterable[Mapping[str, Structure]]) -> dict[str, Structure]:
    """What was learned of several parts of some rows, as one."""
    seen: dict[str, Structure] = {}
    for part in parts:
        for channel, structure in part.items():
            seen[channel] = widened(seen.get(channel, NULL), structure)
    return seen


def _normalised(
    connection: duckdb.DuckDBPyConnection, channel: str, structure: Structure, large: bool
) -> Structure:
    """A structure with our names of types. At the top level, JSON is split into text, JSON and null."""
    if not isinstance(structure, dict):  # objects without a field
        return NULL
    found: dict[str, Structure] = {}
    for name, each in structure.items():
        given = {"channel": channel, "pointer": "/" + name.replace("~", "~0").replace("/", "~1")}
        if each == JSON:
            kinds = {row[0] for row in connection.execute(QUERIES["kinds"], given).fetchall()} - {"NULL"}
            found[name] = NULL if kinds == {"OBJECT"} else JSON if kinds & {"OBJECT", "ARRAY"} else TEXT
        elif each in _INTEGERS and large:
            [(most,)] = connection.execute(QUERIES["largest"], given).fetchall()
            found[name] = "HUGEINT" if most is not None and most > _MOST else "BIGINT"
        else:
            found[name] = _renamed(each, "HUGEINT" if large else "BIGINT")
    return found


def _renamed(structure: Structure, integer: str) -> Structure:
    match structure:
        case dict():
            return {name: _renamed(each, integer) for name, each in structure.items()}
        case [each]:
            return [_renamed(each, integer)]
    return integer if structure in _INTEGERS else structure


def view_name(channel: str, tables: Collection[str]) -> str:
    """The view of a channel: its name, unless a table has it."""
    return f"{channel}_typed" if channel in (*tables, *RESERVED) else channel


def view(
    name: str,
    table: str,
    channel: str,
    fields: Mapping[str, Sequence[Structure]],
    stored: Collection[str] = (),
    *,
    temporary: bool = False,
) -> str:
    """The statement that makes the view. `fields` have the structures that each has had, the last one first;
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


def _column(field: str, kinds: Sequence[Structure], stored: Collection[str]) -> str:
    """From the columns in which the field stands, by its types, where all of them are stored."""
    names = [TypedColumn(field, kind).name for kind in kinds if isinstance(kind, str)]
    if not names or len(names) < len(kinds) or not set(names) <= set(stored):
        return _value(field, kinds[0] if kinds else NULL)
    first, *others = map(quoted, names)
    casts = [f"CAST({each} AS {kinds[0]})" for each in others]
    return f"coalesce({first}, {', '.join(casts)})" if casts else first


def _value(field: str, structure: Structure) -> str:
    """A field of the data, as SQL."""
    pointer = literal("/" + field.replace("~", "~0").replace("/", "~1"))
    if isinstance(structure, str):
        text = f"TRY(json_extract_string(data, {pointer}))"
        return text if structure in (TEXT, JSON, NULL) else f"TRY_CAST({text} AS {structure})"
    wanted = literal(orjson.dumps(_json_transform(structure)).decode())
    return f"TRY(json_transform(json_extract(data, {pointer}), {wanted}))"


def _json_transform(structure: Structure) -> Structure:
    match structure:
        case dict():
            return {name: _json_transform(each) for name, each in structure.items()}
        case [each]:
            return [_json_transform(each)]
    return JSON if structure == NULL else structure


def quoted(name: str) -> str:
    """A name in a statement."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text in a statement."""
    return "'" + text.replace("'", "''") + "'"
