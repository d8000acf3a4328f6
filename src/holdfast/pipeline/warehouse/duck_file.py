"""The file of a DuckDB warehouse: opened when it is first used, with DuckDB's errors as ours."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa

from holdfast.model.errors import InvalidInput, Terminal, Unavailable
from holdfast.pipeline.warehouse.damage import advice
from holdfast.pipeline.warehouse.projection import duck_type, first_values
from holdfast.pipeline.warehouse.queries import load_queries
from holdfast.pipeline.warehouse.schemas import QUERIES as SCHEMAS
from holdfast.pipeline.warehouse.schemas import Schema, Schemas, from_row, history
from holdfast.pipeline.warehouse.tables import Table
from holdfast.pipeline.warehouse.views import view, view_name

log = logging.getLogger(__name__)
QUERIES = load_queries("duck.sql")
_DATA_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)
PATIENCE, PAUSE = 10.0, 0.02
"""How long to wait for another process to let go of the file, and how often to ask, in seconds."""


class DuckFile:
    """One file. It is locked against other processes until `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path.expanduser().resolve()
        self.url = f"duckdb://{self._path}"
        self._open: duckdb.DuckDBPyConnection | None = None
        self._ready: set[Table] = set()

    @contextmanager
    def connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An open connection; the file is made if it is not there. After an error of DuckDB's own it is
        opened anew."""
        try:
            if self._open is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._open = self._connect()
                _bring_up_to_date(self._open)
            yield self._open
        except _DATA_ERRORS as error:
            raise Terminal(_brief(error)) from error
        except (duckdb.Error, OSError) as error:
            self._attempt(self.close)
            self._open = None
            raise Unavailable(f"{self.url}: {_brief(error)}{advice(error)}") from error

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """One process at a time has the file: whoever wants it waits for a turn."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return duckdb.connect(str(self._path))
            except duckdb.IOException as error:
                if "Could not set lock" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(PAUSE)

    @contextmanager
    def reading(self, table: str) -> Iterator[duckdb.DuckDBPyConnection | None]:
        """A connection to read a table by; None where there is no such table: whoever looks makes none."""
        if self._open is None and not self._path.exists():
            log.warning("there is no warehouse %s: nothing is in it", self.url)
            yield None
            return
        with self.connection() as connection:
            yield connection if connection.execute(QUERIES["columns"], [table]).fetchall() else None

    @contextmanager
    def writing(self, table: Table, rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to fill a table by, which is as the mapping wants it; the rows stand as `incoming`."""
        with self.incoming(rows) as connection:
            self.prepare(connection, [table])
            yield connection

    @contextmanager
    def incoming(self, rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection where rows stand as `incoming`."""
        with self.connection() as connection:
            connection.register("incoming", rows)
            try:
                yield connection
            finally:
                if self._open is connection:
                    connection.unregister("incoming")

    @contextmanager
    def transaction(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """All of a block or nothing."""
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            self._attempt(connection.rollback)
            raise

    def schemas(self) -> list[Schema]:
        """All versions of the schemas of channels."""
        with self.connection() as connection:
            rows = connection.execute(SCHEMAS["read"].format(table="holdfast_schemas")).fetchall()
            return [from_row(row) for row in rows]

    def put_schemas(self, news: Sequence[Schema], schemas: Schemas) -> None:
        """Add versions, and make the views of their channels anew."""
        with self.connection() as connection:
            self.prepare(connection, [schemas.of(each.channel) for each in news])
            with self.transaction(connection):
                tables = {row[0] for row in connection.execute(SCHEMAS["tables"]).fetchall()}
                for each in news:
                    connection.execute(SCHEMAS["write"], each.to_row())
                    name, fields = view_name(each.channel, tables), history(schemas.all, each.channel)
                    stored = dict(connection.execute(QUERIES["columns"], [each.table]).fetchall())
                    connection.execute(view(name, each.table, each.channel, fields, stored))

    def close(self) -> None:
        """Let go of it."""
        if self._open is not None:
            self._open.close()
        self._open = None
        self._ready.clear()

    def prepare(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
        """Make tables, and add the columns that they lack."""
        for table in set(tables) - self._ready:
            self._prepare(connection, table)

    def _prepare(self, connection: duckdb.DuckDBPyConnection, table: Table) -> None:
        quoted = quote(table.name)
        with self.transaction(connection):
            _create(connection, table.name)
            there = dict(connection.execute(QUERIES["columns"], [table.name]).fetchall())
            columns = {each.name: duck_type(each.type) for each in table.columns}
            for name, wanted in (columns | {each.name: each.type for each in table.typed}).items():
                found = there.get(name)
                if found is None:
                    connection.execute(f"ALTER TABLE {quoted} ADD COLUMN {quote(name)} {wanted}")
                elif found != wanted and name in columns:
                    raise InvalidInput(
                        f"column {name!r} of table {table.name!r} is {found} in the warehouse and "
                        f"{wanted} in the mapping; choose another name for the new one"
                    )
        self._ready.add(table)

    def _attempt(self, act: Callable[[], object]) -> None:
        """Tidy up after an error that says more than one met in tidying up."""
        try:
            act()
        except duckdb.Error:
            self._open = None


def _create(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make a table of events. A channel's view of that name goes; it gets another one."""
    if connection.execute(QUERIES["is_view"], [table]).fetchall():
        connection.execute(f"DROP VIEW {quote(table)}")
    connection.execute(QUERIES["create_table"].format(table=quote(table)))


def _bring_up_to_date(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("SET TimeZone = 'UTC'")  # a time without a zone is the same one on every machine
    connection.execute(QUERIES["schema"])
    connection.execute(SCHEMAS["create"])
    if connection.execute(QUERIES["failed_is_old"]).fetchall() == [(True,)]:
        connection.execute(QUERIES["failed_defaults"])
    connection.execute(QUERIES["failed_indexes"])


def first_times(
    connection: duckdb.DuckDBPyConnection, name: str, channel: str, columns: Sequence[str]
) -> dict[str, object]:
    """Since when columns have values in a channel's rows: parameters for `mapped`."""
    if not columns:
        return {}
    statement = f"SELECT {first_values(columns)} FROM {name} WHERE channel = ?"  # noqa: S608 - the mapping is checked
    [found] = connection.execute(statement, [channel]).fetchall()
    return {f"first_{column}": first for column, first in zip(columns, found, strict=True)}


def quote(name: str) -> str:
    """A name in a statement."""
    return f'"{name}"'


def _brief(error: Exception) -> str:
    return str(error).partition("\n")[0]
