"""DuckDB as a warehouse: one file, one process that writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa

from holdfast import failpoints
from holdfast.model.errors import InvalidInput, Terminal, Unavailable
from holdfast.pipeline.wal.batch import BatchKey
from holdfast.pipeline.warehouse.contract import FailedEvent, Outcome, Standing, Status
from holdfast.pipeline.warehouse.projection import duck_type, projection
from holdfast.pipeline.warehouse.queries import load_queries
from holdfast.pipeline.warehouse.tables import Table, Tables

T = TypeVar("T")
QUERIES = load_queries("duck.sql")
_CHUNK = 100_000
_DATA_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)


class DuckWarehouse:
    """See the contract. The file is locked against other processes until `close`."""

    layer = "duckdb_insert"

    def __init__(self, path: Path, tables: Tables) -> None:
        self._path, self._tables = path.expanduser().resolve(), tables
        self.url = f"duckdb://{self._path}"
        self._open: duckdb.DuckDBPyConnection | None = None
        self._ready: set[Table] = set()

    def load(self, key: str, channel: str, rows: pa.Table) -> Outcome:
        """See the contract."""
        table = self._tables.of(channel)
        with self._rows(rows) as connection:
            self._prepare(table)
            with self._transaction(connection):
                connection.execute(QUERIES["take_turn"])
                found = self._outcome(connection, key)
                if found is not None:
                    return found
                outcome = self._insert(connection, key, table, rows.num_rows)
                self._record(connection, key, outcome)
                failpoints.hit("loader.before_commit")
        failpoints.hit("loader.after_commit")
        return outcome

    def rehearse(self, channel: str, rows: pa.Table) -> None:
        """See the contract."""
        table = self._tables.of(channel)
        with self._rows(rows) as connection:
            self._prepare(table)
            select = ", ".join(projection(table).values())
            # Whatever is selected is also evaluated: a table that nobody keeps takes it.
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE rehearsal AS SELECT {select} FROM incoming",  # noqa: S608 - the mapping is checked
                {"batch": "", "channel": channel, "partition": 0, "now": datetime.now(UTC)},
            )
            connection.execute("DROP TABLE rehearsal")

    def refuse(self, key: str, reason: str) -> Outcome:
        """See the contract."""
        with self._connection() as connection, self._transaction(connection):
            connection.execute(QUERIES["take_turn"])
            found = self._outcome(connection, key)
            if found is None:
                found = Outcome(0, 0, (), reason)
                self._record(connection, key, found)
        return found

    def outcome(self, key: str) -> Outcome | None:
        """See the contract."""
        with self._connection() as connection:
            return self._outcome(connection, key)

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        """See the contract."""
        names = [field.name for field in fields(FailedEvent)]
        rows = pa.table({name: [getattr(event, name) for event in events] for name in names})
        if events:
            with self._rows(rows) as connection, self._transaction(connection):
                connection.execute(QUERIES["put_failed"])

    def failed(self, status: Status | None = None, limit: int = 1000) -> list[FailedEvent]:
        """See the contract."""
        with self._connection() as connection:
            found: pa.Table = connection.sql(
                QUERIES["failed"], params=[status, status, limit]
            ).to_arrow_table()
            return [FailedEvent(**row) for row in found.to_pylist()]

    def events(self, channel: str, day: date | None = None) -> Iterator[pa.RecordBatch]:
        """See the contract."""
        midnight = None if day is None else datetime.combine(day, time(), UTC)
        with self._table(channel) as (connection, table):
            statement = QUERIES["events"].format(table=table)
            found = connection.sql(statement, params={"channel": channel, "day": midnight})
            reader: pa.RecordBatchReader = found.to_arrow_reader(_CHUNK)
            yield from reader

    def holds(self, channel: str, transaction_ids: Sequence[str]) -> set[str]:
        """See the contract."""
        with self._table(channel) as (connection, table):
            found = connection.execute(QUERIES["holds"].format(table=table), [list(transaction_ids)])
            return {row[0] for row in found.fetchall()}

    def find(self, event_id: str, channels: Sequence[str]) -> list[Standing]:
        """See the contract."""
        found: list[Standing] = []
        for channel in {self._tables.of(each): each for each in channels}.values():
            with self._table(channel) as (connection, table):
                rows = connection.execute(QUERIES["find"].format(table=table), [event_id, list(channels)])
                found += (Standing(*row) for row in rows.fetchall())
        return found

    def close(self) -> None:
        """See the contract."""
        if self._open is not None:
            self._open.close()
        self._open = None
        self._ready.clear()

    def _insert(self, connection: duckdb.DuckDBPyConnection, key: str, table: Table, rows: int) -> Outcome:
        quoted = _quote(table.name)
        for step in ("standing", "suspects", "rivals"):
            connection.execute(QUERIES[step].format(table=quoted))
        rivals = connection.execute('SELECT "position", same FROM rivals ORDER BY 1').fetchall()
        values = projection(table)
        statement = QUERIES["insert"].format(
            table=quoted, columns=", ".join(map(_quote, values)), values=", ".join(values.values())
        )
        batch = BatchKey.parse(key.partition("#")[0])
        given = {"batch": batch.name, "channel": batch.channel, "partition": batch.partition}
        connection.execute(statement, given | {"now": datetime.now(UTC)})
        conflicts = tuple(position for position, same in rivals if not same)
        return Outcome(rows - len(rivals), len(rivals) - len(conflicts), conflicts)

    def _record(self, connection: duckdb.DuckDBPyConnection, key: str, outcome: Outcome) -> None:
        inserted, duplicates, conflicts, refused = outcome
        entry = [key, inserted, duplicates, list(conflicts), refused, datetime.now(UTC)]
        connection.execute(QUERIES["record"], entry)

    def _outcome(self, connection: duckdb.DuckDBPyConnection, key: str) -> Outcome | None:
        found = connection.execute(QUERIES["outcome"], [key]).fetchall()  # one left unread blocks the rest
        for inserted, duplicates, conflicts, refused in found:
            return Outcome(inserted, duplicates, tuple(conflicts), refused)
        return None

    def _prepare(self, table: Table) -> None:
        """Make the table, and add the columns that it lacks."""
        if table in self._ready or self._open is None:
            return
        connection, quoted = self._open, _quote(table.name)
        with self._transaction(connection):
            connection.execute(QUERIES["create_table"].format(table=quoted))
            there = dict(connection.execute(QUERIES["columns"], [table.name]).fetchall())
            for column in table.columns:
                wanted, found = duck_type(column.type), there.get(column.name)
                if found is None:
                    connection.execute(f"ALTER TABLE {quoted} ADD COLUMN {_quote(column.name)} {wanted}")
                elif found != wanted:
                    raise InvalidInput(
                        f"column {column.name!r} of table {table.name!r} is {found} in the warehouse and "
                        f"{wanted} in the mapping; choose another name for the new one"
                    )
        self._ready.add(table)

    @contextmanager
    def _table(self, channel: str) -> Iterator[tuple[duckdb.DuckDBPyConnection, str]]:
        """The table of a channel, as it is to be for the mapping, and its name in a statement."""
        table = self._tables.of(channel)
        with self._connection() as connection:
            self._prepare(table)
            yield connection, _quote(table.name)

    @contextmanager
    def _rows(self, rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._connection() as connection:
            connection.register("incoming", rows)
            try:
                yield connection
            finally:
                if self._open is connection:
                    connection.unregister("incoming")

    @contextmanager
    def _transaction(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            self._attempt(connection.rollback)
            raise

    @contextmanager
    def _connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """An open connection, and DuckDB's errors as ours. After one that is its own it is opened anew."""
        try:
            if self._open is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._open = duckdb.connect(str(self._path))
                self._open.execute(QUERIES["schema"])
            yield self._open
        except _DATA_ERRORS as error:
            raise Terminal(_brief(error)) from error
        except (duckdb.Error, OSError) as error:
            self._attempt(self.close)
            self._open = None
            raise Unavailable(f"{self.url}: {_brief(error)}") from error

    def _attempt(self, act: Callable[[], object]) -> None:
        """Tidy up after an error that says more than one met in tidying up."""
        try:
            act()
        except duckdb.Error:
            self._open = None


def _brief(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _quote(name: str) -> str:
    return f'"{name}"'
