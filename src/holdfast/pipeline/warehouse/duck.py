"""DuckDB as a warehouse: one file, one process that writes it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, date, datetime
from pathlib import Path

import duckdb
import pyarrow as pa

from holdfast import failpoints
from holdfast.model.errors import InvalidInput, Terminal, Unavailable
from holdfast.model.sql_files import load_queries
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.warehouse.contract import FailedEvent, Load, LoadOutcome, Status, StoredEvent
from holdfast.pipeline.warehouse.damage import advice
from holdfast.pipeline.warehouse.loads import by_table, incoming_rows, outcomes, total
from holdfast.pipeline.warehouse.schemas import QUERIES as SCHEMAS
from holdfast.pipeline.warehouse.schemas import (
    ChannelSchema,
    ChannelSchemas,
    from_row,
    history,
    learn,
    quoted,
    view,
    view_name,
)
from holdfast.pipeline.warehouse.tables import Table, Tables, duck_type, first_values, mapped, projection

log = logging.getLogger(__name__)
QUERIES = load_queries(__package__, "duck.sql")
_DATA_ERRORS = (duckdb.DataError, duckdb.InvalidInputException)
_CHUNK = 100_000
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
                _migrate(self._open)
            yield self._open
        except _DATA_ERRORS as error:
            raise Terminal(_brief(error)) from error
        except (duckdb.Error, OSError) as error:
            self._attempt(self.close)
            self._open = None
            raise Unavailable(f"{self.url}: {_brief(error)}{advice(error)}") from error

    def _connect(self) -> duckdb.DuckDBPyConnection:
        """Open the file; waits while another process has it."""
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
        """A connection to read a table; None where there is no such table. Reading creates no file."""
        if self._open is None and not self._path.exists():
            log.warning("there is no warehouse %s: nothing is in it", self.url)
            yield None
            return
        with self.connection() as connection:
            yield connection if connection.execute(QUERIES["columns"], [table]).fetchall() else None

    @contextmanager
    def writing(self, table: Table, rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to write a table, which is prepared; its table `incoming` has the rows."""
        with self.incoming(rows) as connection:
            self.prepare(connection, [table])
            yield connection

    @contextmanager
    def incoming(self, rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection with these rows as the table `incoming`."""
        with self.connection() as connection:
            connection.register("incoming", rows)
            try:
                yield connection
            finally:
                if self._open is connection:
                    connection.unregister("incoming")

    @contextmanager
    def transaction(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """A transaction for the length of a block, rolled back where it raises."""
        connection.begin()
        try:
            yield
            connection.commit()
        except BaseException:
            self._attempt(connection.rollback)
            raise

    def schemas(self) -> list[ChannelSchema]:
        """All versions of the schemas of channels."""
        with self.connection() as connection:
            rows = connection.execute(SCHEMAS["read"].format(table="holdfast_schemas")).fetchall()
            return [from_row(row) for row in rows]

    def put_schemas(self, news: Sequence[ChannelSchema], schemas: ChannelSchemas) -> None:
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
        """Close it, so that other processes can open it."""
        if self._open is not None:
            self._open.close()
        self._open = None
        self._ready.clear()

    def prepare(self, connection: duckdb.DuckDBPyConnection, tables: Iterable[Table]) -> None:
        """Make tables, and add the columns that they lack."""
        for table in set(tables) - self._ready:
            self._prepare(connection, table)

    def _prepare(self, connection: duckdb.DuckDBPyConnection, table: Table) -> None:
        with self.transaction(connection):
            _create(connection, table.name)
            there = dict(connection.execute(QUERIES["columns"], [table.name]).fetchall())
            columns = {each.name: duck_type(each.type) for each in table.columns}
            for name, wanted in (columns | {each.name: each.type for each in table.typed}).items():
                found = there.get(name)
                if found is None:
                    connection.execute(f"ALTER TABLE {quoted(table.name)} ADD COLUMN {quoted(name)} {wanted}")
                elif found != wanted and name in columns:
                    raise InvalidInput(
                        f"column {name!r} of table {table.name!r} is {found} in the warehouse and "
                        f"{wanted} in the mapping; choose another name for the new one"
                    )
        self._ready.add(table)

    def _attempt(self, cleanup: Callable[[], object]) -> None:
        """Clean up after an error, which must not be hidden by one of the cleanup itself."""
        try:
            cleanup()
        except duckdb.Error:
            self._open = None


def _create(connection: duckdb.DuckDBPyConnection, table: str) -> None:
    """Make a table of events. A channel's view of that name goes; it gets another one."""
    if connection.execute(QUERIES["is_view"], [table]).fetchall():
        connection.execute(f"DROP VIEW {quoted(table)}")
    connection.execute(QUERIES["create_table"].format(table=quoted(table)))


def _migrate(connection: duckdb.DuckDBPyConnection) -> None:
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


def _brief(error: Exception) -> str:
    return str(error).partition("\n")[0]


class DuckWarehouse:
    """The file is locked against other processes until `close`."""

    layer = "duckdb_insert"
    reads_segments = False

    def __init__(self, path: Path, tables: Tables) -> None:
        self._file, self._tables = DuckFile(path), tables
        self.url = self._file.url
        self._schemas = ChannelSchemas(tables, self._file.schemas, self._file.put_schemas)

    def load(self, loads: Sequence[Load]) -> list[LoadOutcome]:
        """One transaction holds all tables."""
        keys = [load.key for load in loads]
        given = [load.table for load in loads]
        self._schemas.observe(learn(given), lambda: self.rehearse(pa.concat_tables(given)))
        tables = [self._schemas.of(channel) for load in loads for channel in load.channels]
        with self._file.incoming(incoming_rows([])) as connection:
            self._file.prepare(connection, tables)
            with self._file.transaction(connection):
                connection.execute(QUERIES["take_turn"])
                known = _outcomes(connection, keys)
                fresh = [load for load in loads if load.key not in known]
                made = self._insert(connection, fresh)
                _record(connection, made)
                failpoints.hit("loader.before_commit")
        failpoints.hit("loader.after_commit")
        return [(known | made)[key] for key in keys]

    def _insert(self, connection: duckdb.DuckDBPyConnection, loads: Sequence[Load]) -> dict[str, LoadOutcome]:
        found: dict[str, list[LoadOutcome]] = {load.key: [] for load in loads}
        for table, its in by_table(self._schemas, loads):
            connection.register("incoming", incoming_rows(its))
            for load, outcome in zip(its, _insert(connection, table, its), strict=True):
                found[load.key].append(outcome)
        return {key: total(parts) for key, parts in found.items()}

    def rehearse(self, rows: pa.Table) -> None:
        load = Load("", tuple(rows["channel"].unique().to_pylist()), rows)
        for table, its in by_table(self._tables, [load]):
            with self._file.writing(table, incoming_rows(its)) as connection:
                select = ", ".join(projection(table).values())
                # Whatever is selected is also evaluated: a table that nobody keeps takes it.
                connection.execute(
                    f"CREATE OR REPLACE TEMP TABLE rehearsal AS SELECT {select} FROM incoming",  # noqa: S608 - the mapping is checked
                    {"now": datetime.now(UTC)},
                )
                connection.execute("DROP TABLE rehearsal")

    def refuse(self, key: str, channels: Sequence[str], reason: str) -> LoadOutcome:
        with self._file.connection() as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            found = _outcomes(connection, [key]).get(key)
            if found is None:
                found = LoadOutcome(0, 0, (), reason)
                _record(connection, {key: found})
        return found

    def outcome(self, key: str, channels: Sequence[str]) -> LoadOutcome | None:
        """One ledger serves all tables."""
        with self._file.connection() as connection:
            return _outcomes(connection, [key]).get(key)

    def replace(self, batch: str, spot: ChannelPartition, positions: Sequence[str], rows: pa.Table) -> int:
        table = self._schemas.of(spot.channel)
        given = incoming_rows([Load(batch, (spot.channel,), rows)])
        with self._file.writing(table, given) as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            statement = QUERIES["remove"].format(table=quoted(table.name))
            place = spot._asdict() | {"positions": list(positions)}
            [(removed,)] = connection.execute(statement, place).fetchall()
            _put(connection, table, QUERIES["put"])
            failpoints.hit("repair.before_commit")
        return int(removed)

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        names = [field.name for field in fields(FailedEvent)]
        rows = pa.table({name: [getattr(event, name) for event in events] for name in names})
        if events:
            with self._file.incoming(rows) as connection, self._file.transaction(connection):
                connection.execute(QUERIES["put_failed"])

    def failed(self, status: Status | None = None, limit: int = 1000) -> list[FailedEvent]:
        with self._file.reading("failed_events") as connection:
            if connection is None:
                return []
            answer = connection.sql(QUERIES["failed"], params=[status, status, limit])
            found: pa.Table = answer.to_arrow_table()
            return [FailedEvent(**row) for row in found.to_pylist()]

    def events(self, channel: str, day: date | None = None) -> Iterator[pa.RecordBatch]:
        midnight = None if day is None else datetime.combine(day, datetime.min.time(), UTC)
        name = self._tables.of(channel).name
        with self._file.reading(name) as connection:
            if connection is not None:
                there = {row[0] for row in connection.execute(QUERIES["columns"], [name]).fetchall()}
                table = self._schemas.of(channel).within(there)
                since = first_times(connection, quoted(name), channel, table.computed)
                statement = QUERIES["events"].format(table=quoted(name), mapped=mapped(table))
                found = connection.sql(statement, params={"channel": channel, "day": midnight} | since)
                reader: pa.RecordBatchReader = found.to_arrow_reader(_CHUNK)
                yield from reader

    def holds(self, channel: str, transaction_ids: Sequence[str]) -> set[str]:
        name = self._tables.of(channel).name
        with self._file.reading(name) as connection:
            if connection is None:
                return set()
            statement = QUERIES["holds"].format(table=quoted(name))
            return {row[0] for row in connection.execute(statement, [list(transaction_ids)]).fetchall()}

    def find(self, event_id: str, channels: Sequence[str]) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        for name in {self._tables.of(channel).name for channel in channels}:
            with self._file.reading(name) as connection:
                if connection is not None:
                    statement = QUERIES["find"].format(table=quoted(name))
                    rows = connection.execute(statement, [event_id, list(channels)]).fetchall()
                    found += (StoredEvent(*row) for row in rows)
        return found

    def close(self) -> None:
        self._file.close()
        self._schemas.forget()


def _insert(connection: duckdb.DuckDBPyConnection, table: Table, loads: Sequence[Load]) -> list[LoadOutcome]:
    for step in ("existing", "possible_repeats", "repeats"):
        connection.execute(QUERIES[step].format(table=quoted(table.name)))
    repeated = connection.execute(QUERIES["repeats_found"]).fetchall()
    _put(connection, table, QUERIES["insert"])
    return outcomes(loads, repeated)


def _put(connection: duckdb.DuckDBPyConnection, table: Table, statement: str) -> None:
    values = projection(table)
    columns = {"columns": ", ".join(map(quoted, values)), "values": ", ".join(values.values())}
    connection.execute(statement.format(table=quoted(table.name), **columns), {"now": datetime.now(UTC)})


def _record(connection: duckdb.DuckDBPyConnection, made: Mapping[str, LoadOutcome]) -> None:
    now = datetime.now(UTC)
    for key, (inserted, duplicates, conflicts, refused) in made.items():
        entry = [key, inserted, duplicates, list(conflicts), refused, now]
        connection.execute(QUERIES["record"], entry)


def _outcomes(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> dict[str, LoadOutcome]:
    """What the ledger says of those keys that it knows."""
    # All of them: a result that is not read to its end blocks the connection.
    found = connection.execute(QUERIES["outcomes"], [list(keys)]).fetchall()
    return {
        key: LoadOutcome(inserted, duplicates, tuple(conflicts), refused)
        for key, inserted, duplicates, conflicts, refused in found
    }
