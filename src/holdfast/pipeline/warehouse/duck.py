"""DuckDB as a warehouse: one file, one process that writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, date, datetime, time
from pathlib import Path

import duckdb
import pyarrow as pa

from holdfast import failpoints
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.warehouse.contract import FailedEvent, Load, Outcome, Standing, Status
from holdfast.pipeline.warehouse.duck_file import QUERIES, DuckFile, first_times, quote
from holdfast.pipeline.warehouse.incoming import by_table, incoming, outcomes, total
from holdfast.pipeline.warehouse.projection import mapped, projection
from holdfast.pipeline.warehouse.schemas import Schemas, learn
from holdfast.pipeline.warehouse.tables import Table, Tables

_CHUNK = 100_000


class DuckWarehouse:
    """See the contract. The file is locked against other processes until `close`."""

    layer = "duckdb_insert"
    reads_segments = False

    def __init__(self, path: Path, tables: Tables) -> None:
        self._file, self._tables = DuckFile(path), tables
        self.url = self._file.url
        self._schemas = Schemas(tables, self._file.schemas, self._file.put_schemas)

    def load(self, loads: Sequence[Load]) -> list[Outcome]:
        """See the contract. One transaction holds all tables."""
        keys = [load.key for load in loads]
        self._schemas.observe(learn([load.table for load in loads]))
        tables = [self._schemas.of(channel) for load in loads for channel in load.channels]
        with self._file.incoming(incoming([])) as connection:
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

    def _insert(self, connection: duckdb.DuckDBPyConnection, loads: Sequence[Load]) -> dict[str, Outcome]:
        found: dict[str, list[Outcome]] = {load.key: [] for load in loads}
        for table, its in by_table(self._schemas, loads):
            connection.register("incoming", incoming(its))
            for load, outcome in zip(its, _insert(connection, table, its), strict=True):
                found[load.key].append(outcome)
        return {key: total(parts) for key, parts in found.items()}

    def rehearse(self, rows: pa.Table) -> None:
        """See the contract."""
        load = Load("", tuple(rows["channel"].unique().to_pylist()), rows)
        for table, its in by_table(self._tables, [load]):
            with self._file.writing(table, incoming(its)) as connection:
                select = ", ".join(projection(table).values())
                # Whatever is selected is also evaluated: a table that nobody keeps takes it.
                connection.execute(
                    f"CREATE OR REPLACE TEMP TABLE rehearsal AS SELECT {select} FROM incoming",  # noqa: S608 - the mapping is checked
                    {"now": datetime.now(UTC)},
                )
                connection.execute("DROP TABLE rehearsal")

    def refuse(self, key: str, channels: Sequence[str], reason: str) -> Outcome:
        """See the contract."""
        with self._file.connection() as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            found = _outcomes(connection, [key]).get(key)
            if found is None:
                found = Outcome(0, 0, (), reason)
                _record(connection, {key: found})
        return found

    def outcome(self, key: str, channels: Sequence[str]) -> Outcome | None:
        """See the contract. One ledger serves all tables."""
        with self._file.connection() as connection:
            return _outcomes(connection, [key]).get(key)

    def replace(self, batch: str, spot: Spot, positions: Sequence[str], rows: pa.Table) -> int:
        """See the contract."""
        table = self._schemas.of(spot.channel)
        given = incoming([Load(batch, (spot.channel,), rows)])
        with self._file.writing(table, given) as connection, self._file.transaction(connection):
            connection.execute(QUERIES["take_turn"])
            statement = QUERIES["remove"].format(table=quote(table.name))
            place = spot._asdict() | {"positions": list(positions)}
            [(removed,)] = connection.execute(statement, place).fetchall()
            _put(connection, table, QUERIES["put"])
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
        name = self._tables.of(channel).name
        with self._file.reading(name) as connection:
            if connection is not None:
                there = {row[0] for row in connection.execute(QUERIES["columns"], [name]).fetchall()}
                table = self._schemas.of(channel).within(there)
                since = first_times(connection, quote(name), channel, table.computed)
                statement = QUERIES["events"].format(table=quote(name), mapped=mapped(table))
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
        self._schemas.forget()


def _insert(connection: duckdb.DuckDBPyConnection, table: Table, loads: Sequence[Load]) -> list[Outcome]:
    for step in ("standing", "suspects", "rivals"):
        connection.execute(QUERIES[step].format(table=quote(table.name)))
    rivals = connection.execute(QUERIES["rivals_found"]).fetchall()
    _put(connection, table, QUERIES["insert"])
    return outcomes(loads, rivals)


def _put(connection: duckdb.DuckDBPyConnection, table: Table, statement: str) -> None:
    values = projection(table)
    columns = {"columns": ", ".join(map(quote, values)), "values": ", ".join(values.values())}
    connection.execute(statement.format(table=quote(table.name), **columns), {"now": datetime.now(UTC)})


def _record(connection: duckdb.DuckDBPyConnection, made: Mapping[str, Outcome]) -> None:
    now = datetime.now(UTC)
    for key, (inserted, duplicates, conflicts, refused) in made.items():
        entry = [key, inserted, duplicates, list(conflicts), refused, now]
        connection.execute(QUERIES["record"], entry)


def _outcomes(connection: duckdb.DuckDBPyConnection, keys: Sequence[str]) -> dict[str, Outcome]:
    """What the ledger says of those keys that it knows."""
    found = connection.execute(
        QUERIES["outcomes"], [list(keys)]
    ).fetchall()  # one left unread blocks the rest
    return {
        key: Outcome(inserted, duplicates, tuple(conflicts), refused)
        for key, inserted, duplicates, conflicts, refused in found
    }
