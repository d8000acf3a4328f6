"""The schemas of channels: what was learned of their data, version by version, kept in the warehouse itself.

A batch is looked at before it is loaded, so that a schema covers every row that is there. To look at it again
changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import duckdb
import orjson
import pyarrow as pa

from holdfast.pipeline.warehouse.queries import load_queries
from holdfast.pipeline.warehouse.shape import JSON, NULL, TEXT, Bounded, Shape, changes, widened
from holdfast.pipeline.warehouse.tables import Table, Tables, Typed

log = logging.getLogger(__name__)
QUERIES = load_queries("schemas.sql")
NAMED = 20
"""How many of the fields that were left out are named; more of them make no further versions."""
COLUMNS = 200
"""The most columns of a table that were learned; other fields are computed from `data` by whoever asks."""
_INTEGERS = ("UBIGINT", "BIGINT", "HUGEINT")
_LONGEST = 500
_MOST = (1 << 63) - 1


class Schema(NamedTuple):
    """A version of a channel's schema: a row of `holdfast_schemas`."""

    channel: str
    version: int
    table: str
    shape: Shape
    left_out: tuple[str, ...]
    """Fields that are no columns: too many, or of a name that is none or that another one has."""
    since: datetime
    cause: str
    """What is new in it."""

    def to_row(self) -> list[Any]:
        """As it is stored."""
        shape = orjson.dumps(self.shape).decode()
        return [self.channel, self.version, self.table, shape, list(self.left_out), self.since, self.cause]


def from_row(row: Sequence[Any]) -> Schema:
    """What `to_row` made."""
    channel, version, table, shape, left_out, since, cause = row
    return Schema(channel, version, table, orjson.loads(shape), tuple(left_out), since, cause)


def latest(schemas: Iterable[Schema]) -> dict[str, Schema]:
    """The last version of each channel's schema."""
    found: dict[str, Schema] = {}
    for each in schemas:
        if each.channel not in found or each.version > found[each.channel].version:
            found[each.channel] = each
    return found


def typed_columns(schemas: Iterable[Schema], table: Table) -> tuple[Typed, ...]:
    """Which fields of its channels are stored in columns of a table: those that were learned first."""
    mapped = {each.name for each in table.columns}
    found: dict[Typed, None] = {}
    for each in sorted(schemas, key=lambda each: (each.since, each.channel, each.version)):
        if each.table == table.name and isinstance(each.shape, dict):
            for field, kind in each.shape.items():
                if isinstance(kind, str) and (column := Typed(field, kind)).is_usable:
                    found.setdefault(column)
    return tuple(each for each in found if each.name not in mapped)[:COLUMNS]


def history(schemas: Iterable[Schema], channel: str) -> dict[str, list[Shape]]:
    """The shapes that each field of a channel has had, the last one first."""
    found: dict[str, list[Shape]] = {}
    for each in sorted(schemas, key=lambda each: each.version):
        if each.channel == channel and isinstance(each.shape, dict):
            for field, kind in each.shape.items():
                before = found.setdefault(field, [])
                if kind != NULL and (not before or before[0] != kind):
                    before.insert(0, kind)
    return found


class Schemas:
    """What is known of channels. `read` gives all versions that are stored, `write` adds some to them, and
    makes their views anew."""

    def __init__(
        self,
        tables: Tables,
        read: Callable[[], list[Schema]],
        write: Callable[[Sequence[Schema], Schemas], None],
    ) -> None:
        self._tables, self._read, self._write = tables, read, write
        self._all: list[Schema] | None = None
        self._grown: dict[str, tuple[Typed, ...]] = {}

    @property
    def all(self) -> list[Schema]:
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

    def observe(self, seen: Mapping[str, Shape]) -> None:
        """Widen the schemas of channels by what was learned of some rows, and store those that changed."""
        if not self._news(seen, latest(self.all)):
            return
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

    def _news(self, seen: Mapping[str, Shape], known: Mapping[str, Schema]) -> list[Schema]:
        news: list[Schema] = []
        for channel, shape in seen.items():
            before = known.get(channel)
            old: Shape = NULL if before is None else before.shape
            given = self._tables.declared_for(channel)
            if isinstance(given, dict) and isinstance(shape, dict):  # validation has seen to these fields
                shape = {name: each for name, each in shape.items() if given.get(name, NULL) == NULL}
            bounded = Bounded()
            new = bounded.cut(widened(old, widened(given, shape)))
            names = () if before is None else before.left_out
            left_out = (*names, *(each for each in bounded.left_out if each not in names))[:NAMED]
            table = self._tables.of(channel).name
            if before is not None and (new, left_out, table) == (old, names, before.table):
                continue
            version = 1 if before is None else before.version + 1
            base: Shape = {} if old == NULL else old
            moved = before is not None and before.table != table
            told = (
                [f"table {table}"] * moved
                + changes(base, new)
                + [f"{each}: left out" for each in left_out if each not in names]
            )
            cause = "; ".join(told)[:_LONGEST] or "no fields"
            news.append(Schema(channel, version, table, new, left_out, datetime.now(UTC), cause))
        return news


def learn(batches: Sequence[pa.Table]) -> dict[str, Shape]:
    """The shape of the data of each channel in some rows."""
    if not batches:
        return {}
    rows = pa.concat_tables([each.select(["channel", "data"]) for each in batches])
    seen: dict[str, Shape] = dict.fromkeys(rows["channel"].unique().to_pylist(), NULL)
    for where in ("true", QUERIES["shallow"]):
        # A DuckDB of its own: an error in here can be the end of the whole database.
        with duckdb.connect() as connection:
            connection.register("incoming", rows)
            try:
                found = connection.execute(QUERIES["shapes"].format(where=where)).fetchall()
                return seen | {
                    channel: _settled(connection, channel, orjson.loads(text), large)
                    for channel, text, large in found
                }
            except duckdb.Error as error:
                log.info("some data has no shape: %s", str(error).partition("\n")[0])
    return seen


def merged(parts: Iterable[Mapping[str, Shape]]) -> dict[str, Shape]:
    """What was learned of several parts of some rows, as one."""
    seen: dict[str, Shape] = {}
    for part in parts:
        for channel, shape in part.items():
            seen[channel] = widened(seen.get(channel, NULL), shape)
    return seen


def _settled(connection: duckdb.DuckDBPyConnection, channel: str, shape: Shape, large: bool) -> Shape:
    """DuckDB's names of types as ours; of what it calls JSON at the top, whether it is text."""
    if not isinstance(shape, dict):  # objects without a field
        return NULL
    found: dict[str, Shape] = {}
    for name, each in shape.items():
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


def _renamed(shape: Shape, integer: str) -> Shape:
    match shape:
        case dict():
            return {name: _renamed(each, integer) for name, each in shape.items()}
        case [each]:
            return [_renamed(each, integer)]
    return integer if shape in _INTEGERS else shape
