"""DuckDB as a warehouse: one file, one process that writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime, time
from pathlib import Path

import duckdb
import pyarrow as pa

from holdfast import failpoints
from holdfast.pipeline.wal.batch import BatchKey
from holdfast.pipeline.warehouse.contract import FailedEvent, Outcome, Standing, Status
from holdfast.pipeline.warehouse.duck_file import QUERIES, DuckFile, first_times, quote
from holdfast.pipeline.warehouse.projection import mapped, projection
from holdfast.pipeline.warehouse.tables import Table, Tables

_CHUNK = 100_000


class DuckWarehouse:
    """See the contract. The file is locked against other processes until `close`."""

    layer = "duckdb_insert"

    def __init__(self, path: Path, tables: Tables) -> None:
        self._file, self._tables = DuckFile(path), tables
        self.url = self._file.url

    def load(self, key: str, channel: str, rows: pa.Table) -> Outcome:
        """See the contract."""
        table = self._tables.of(channel)
        with self._file.writing(table, rows) as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            found = _outcome(connection, key)
            if found is not None:
                return found
            outcome = _insert(connection, key, table, rows.num_rows)
            _record(connection, key, outcome)
            failpoints.hit("loader.before_commit")
        failpoints.hit("loader.after_commit")
        return outcome

    def rehearse(self, channel: str, rows: pa.Table) -> None:
        """See the contract."""
        table = self._tables.of(channel)
        with self._file.writing(table, rows) as connection:
            select = ", ".join(projection(table).values())
            # Whatever is selected is also evaluated: a table that nobody keeps takes it.
            connection.execute(
                f"CREATE OR REPLACE TEMP TABLE rehearsal AS SELECT {select} FROM incoming",  # noqa: S608 - the mapping is checked
                {"batch": "", "channel": channel, "partition": 0, "now": datetime.now(UTC)},
            )
            connection.execute("DROP TABLE rehearsal")

    def refuse(self, key: str, reason: str) -> Outcome:
        """See the contract."""
        with self._file.connection() as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            found = _outcome(connection, key)
            if found is None:
                found = Outcome(0, 0, (), reason)
                _record(connection, key, found)
        return found

    def outcome(self, key: str) -> Outcome | None:
        """See the contract."""
        with self._file.connection() as connection:
            return _outcome(connection, key)

    def replace(self, batch: BatchKey, positions: Sequence[str], rows: pa.Table) -> int:
        """See the contract."""
        table = self._tables.of(batch.channel)
        place = {"channel": batch.channel, "partition": batch.partition}
        with self._file.writing(table, rows) as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            statement = QUERIES["remove"].format(table=quote(table.name))
            [(removed,)] = connection.execute(statement, place | {"positions": list(positions)}).fetchall()
            _put(connection, batch, table, QUERIES["put"])
            failpoints.hit("repair.before_commit")
        return int(removed)

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        """See the contract."""
        names = [field.name for field in fields(FailedEvent)]
        rows = pa.table({name: [getattr(event, name) for event in events] for name in names})
        if events:
            with self._file.incoming(rows) as connection, self._file.transaction(connection):
                connection.execute(QUERIES["put_failed"])

    def failed(self, status: Status | None = None, limit: int = 1000) -> list[FailedEvent]:
        """See the contract."""
        with self._file.reading("failed_events") as connection:
            if connection is None:
                return []
            answer = connection.sql(QUERIES["failed"], params=[status, status, limit])
            found: pa.Table = answer.to_arrow_table()
            return [FailedEvent(**row) for row in found.to_pylist()]

    def events(self, channel: str, day: date | None = None) -> Iterator[pa.RecordBatch]:
        """See the contract."""
        midnight = None if day is None else datetime.combine(day, time(), UTC)
        table = self._tables.of(channel)
        with self._file.reading(table.name) as connection:
            if connection is not None:
                there = {row[0] for row in connection.execute(QUERIES["columns"], [table.name]).fetchall()}
                columns = [each for each in table.columns if each.name in there]
                since = first_times(connection, quote(table.name), channel, columns)
                statement = QUERIES["events"].format(table=quote(table.name), mapped=mapped(columns))
                found = connection.sql(statement, params={"channel": channel, "day": midnight} | since)
                reader: pa.RecordBatchReader = found.to_arrow_reader(_CHUNK)
                yield from reader

    def holds(self, channel: str, transaction_ids: Sequence[str]) -> set[str]:
        """See the contract."""
        name = self._tables.of(channel).name
        with self._file.reading(name) as connection:
            if connection is None:
                return set()
            statement = QUERIES["holds"].format(table=quote(name))
            return {row[0] for row in connection.execute(statement, [list(transaction_ids)]).fetchall()}

    def find(self, event_id: str, channels: Sequence[str]) -> list[Standing]:
        """See the contract."""
        found: list[Standing] = []
        for name in {self._tables.of(channel).name for channel in channels}:
            with self._file.reading(name) as connection:
                if connection is not None:
                    statement = QUERIES["find"].format(table=quote(name))
                    rows = connection.execute(statement, [event_id, list(channels)]).fetchall()
                    found += (Standing(*row) for row in rows)
        return found

    def close(self) -> None:
        """See the contract."""
        self._file.close()


def _insert(connection: duckdb.DuckDBPyConnection, key: str, table: Table, rows: int) -> Outcome:
    quoted = quote(table.name)
    for step in ("standing", "suspects", "rivals"):
        connection.execute(QUERIES[step].format(table=quoted))
    rivals = connection.execute('SELECT "position", same FROM rivals ORDER BY 1').fetchall()
    _put(connection, BatchKey.parse(key.partition("#")[0]), table, QUERIES["insert"])
    conflicts = tuple(position for position, same in rivals if not same)
    return Outcome(rows - len(rivals), len(rivals) - len(conflicts), conflicts)


def _put(connection: duckdb.DuckDBPyConnection, batch: BatchKey, table: Table, statement: str) -> None:
    values = projection(table)
    columns = {"columns": ", ".join(map(quote, values)), "values": ", ".join(values.values())}
    given = {"batch": batch.name, "channel": batch.channel, "partition": batch.partition}
    connection.execute(
        statement.format(table=quote(table.name), **columns), given | {"now": datetime.now(UTC)}
    )


def _record(connection: duckdb.DuckDBPyConnection, key: str, outcome: Outcome) -> None:
    inserted, duplicates, conflicts, refused = outcome
    entry = [key, inserted, duplicates, list(conflicts), refused, datetime.now(UTC)]
    connection.execute(QUERIES["record"], entry)


def _outcome(connection: duckdb.DuckDBPyConnection, key: str) -> Outcome | None:
    found = connection.execute(QUERIES["outcome"], [key]).fetchall()  # one left unread blocks the rest
    for inserted, duplicates, conflicts, refused in found:
        return Outcome(inserted, duplicates, tuple(conflicts), refused)
    return None
