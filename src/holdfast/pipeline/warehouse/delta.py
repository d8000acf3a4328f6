"""Delta as a warehouse: a folder or a bucket of Delta tables, for clusters and other engines to read.

A commit of a table carries the rows and, as an application transaction, the number of the ledger's entry for
their key. deltalake records such transactions and does not enforce them. So a load looks the key up and
compares with the rows of one version of the table, and commits as the very next version or not at all; where
another writer was faster, it begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, date, datetime, time
from functools import cached_property

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from holdfast import failpoints
from holdfast.model.errors import InvalidInput, Terminal, Unavailable
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal.batch import BatchKey
from holdfast.pipeline.warehouse.contract import FailedEvent, Outcome, Standing, Status
from holdfast.pipeline.warehouse.delta_failed import FAILED, find_failed, put_failed
from holdfast.pipeline.warehouse.delta_files import DeltaFiles
from holdfast.pipeline.warehouse.delta_ledger import Ledger
from holdfast.pipeline.warehouse.delta_sift import candidates, connect, projected, shape, sift, standing_at
from holdfast.pipeline.warehouse.duck_file import QUERIES, first_times
from holdfast.pipeline.warehouse.projection import mapped
from holdfast.pipeline.warehouse.tables import FIXED, Column, Table, Tables

log = logging.getLogger(__name__)
Decide = Callable[[DeltaTable], tuple[pa.Table | None, Outcome]]
"""From a version of a table to the rows that are to go in, and the ledger's entry."""
_COMPARED = [name for name in FIXED if name != "batch"]
_TRIES = 10
_RECENT = 10
"""Versions that are synced again where the ledger knows a key already."""
_CHUNK = 100_000


class DeltaWarehouse:
    """See the contract. Every table is a folder of its own under the root; several processes may write."""

    layer = "delta_commit"

    def __init__(self, root: str, tables: Tables) -> None:
        self.url = f"delta+{root}" if "://" in root else f"delta://{root}"
        self._tables, self._files = tables, DeltaFiles(root)
        self._root = root

    def load(self, key: str, channel: str, rows: pa.Table) -> Outcome:
        """See the contract."""
        table = self._tables.of(channel)
        return self._settle(key, table, lambda delta: sift(candidates(delta, rows), table, key, rows))

    def rehearse(self, channel: str, rows: pa.Table) -> None:
        """See the contract."""
        with self._translated():
            shape(self._tables.of(channel), rows)

    def refuse(self, key: str, reason: str) -> Outcome:
        """See the contract."""
        return self._settle(key, self._table_of(key), lambda _: (None, Outcome(0, 0, (), reason)))

    def outcome(self, key: str) -> Outcome | None:
        """See the contract."""
        with self._translated():
            table = self._table_of(key)
            delta = self._files.find(table.name)
            return None if delta is None else self._known(delta, table, key)

    def replace(self, batch: BatchKey, positions: Sequence[str], rows: pa.Table) -> int:
        """See the contract."""
        table, text = self._tables.of(batch.channel), ", ".join(map(_literal, positions))
        where = (
            f'channel = {_literal(batch.channel)} AND "partition" = {batch.partition} '
            f'AND "position" IN ({text})'
        )
        with self._translated():
            for _ in range(_TRIES):
                delta = self._open(table)
                before = delta.version()
                removed = standing_at(delta, batch, positions)
                failpoints.hit("repair.before_commit")
                try:
                    write_deltalake(
                        delta,
                        projected(table, batch, rows),
                        mode="overwrite",
                        schema_mode="merge",
                        predicate=where,
                        commit_properties=CommitProperties(max_commit_retries=0),
                    )
                except CommitFailedError:
                    continue
                self._files.settle(table.name, before)
                return removed
        raise Unavailable(f"{self.url}: other writers of {table.name!r} were faster {_TRIES} times")

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        """See the contract."""
        if events:
            with self._translated():
                put_failed(self._files, events)

    def failed(self, status: Status | None = None, limit: int = 1000) -> list[FailedEvent]:
        """See the contract."""
        with self._stored(FAILED) as connection:
            return [] if connection is None else find_failed(connection, status, limit)

    def events(self, channel: str, day: date | None = None) -> Iterator[pa.RecordBatch]:
        """See the contract."""
        midnight = None if day is None else datetime.combine(day, time(), UTC)
        table = self._tables.of(channel)
        columns, since = self._first_times(table, channel)
        read = [*_COMPARED, *(column.name for column in columns)]
        with self._stored(table.name, read) as connection:
            if connection is not None:
                query = QUERIES["events"].format(table="stored", mapped=mapped(columns))
                found = connection.sql(query, params={"channel": channel, "day": midnight} | since)
                reader: pa.RecordBatchReader = found.to_arrow_reader(_CHUNK)
                yield from reader

    def _first_times(self, table: Table, channel: str) -> tuple[list[Column], dict[str, object]]:
        """The mapped columns that are there, and since when each has values. A stored table is read once."""
        with self._translated():
            delta = self._files.find(table.name)
            there = set() if delta is None else {field.name for field in delta.schema().fields}
        columns = [column for column in table.columns if column.name in there]
        if not columns:
            return [], {}
        names = ["channel", "ingested_at", *(column.name for column in columns)]
        with self._stored(table.name, names) as connection:
            return columns, {} if connection is None else first_times(connection, "stored", channel, columns)

    def holds(self, channel: str, transaction_ids: Sequence[str]) -> set[str]:
        """See the contract."""
        with self._stored(self._tables.of(channel).name, ["transaction_id"]) as connection:
            if connection is None:
                return set()
            query = QUERIES["holds"].format(table="stored")
            return {row[0] for row in connection.execute(query, [list(transaction_ids)]).fetchall()}

    def find(self, event_id: str, channels: Sequence[str]) -> list[Standing]:
        """See the contract."""
        found: list[Standing] = []
        wanted = [field.name for field in fields(Standing)]
        for name in {self._tables.of(channel).name for channel in channels}:
            with self._stored(name, wanted, ds.field("id") == event_id) as connection:
                if connection is not None:
                    query = QUERIES["find"].format(table="stored")
                    rows = connection.execute(query, [event_id, list(channels)]).fetchall()
                    found += (Standing(*row) for row in rows)
        return found

    def close(self) -> None:
        """See the contract. There is nothing to let go of: readers and writers do not exclude each other."""

    @cached_property
    def _ledger(self) -> Ledger:
        return Ledger(open_store(self._root))

    def _table_of(self, key: str) -> Table:
        return self._tables.of(BatchKey.parse(key.partition("#")[0]).channel)

    def _settle(self, key: str, table: Table, decide: Decide) -> Outcome:
        """What the ledger says of a key; where it says nothing, what is decided and committed now."""
        with self._translated():
            for _ in range(_TRIES):
                delta = self._open(table)
                found = self._known(delta, table, key)
                if found is not None:
                    return found
                fresh, outcome = decide(delta)
                if self._commit(delta, table, key, fresh, outcome):
                    return outcome
        raise Unavailable(f"{self.url}: other writers of {table.name!r} were faster {_TRIES} times")

    def _known(self, delta: DeltaTable, table: Table, key: str) -> Outcome | None:
        """What the ledger says. Whoever committed it may have died before it was durable."""
        found = self._ledger.find(delta, key)
        if found is not None:
            self._files.settle(table.name, max(-1, delta.version() - _RECENT))
        return found

    def _open(self, table: Table) -> DeltaTable:
        """The table at its latest version. Columns that it lacks come with the first rows that have them."""
        wanted = shape(table)
        delta = self._files.open(table.name, wanted)
        there = {field.name: field.type for field in delta.to_pyarrow_dataset().schema}
        for field in wanted:
            found = there.get(field.name, field.type)
            if found != field.type:
                raise InvalidInput(
                    f"column {field.name!r} of table {table.name!r} is {found} in the warehouse and "
                    f"{field.type} in the mapping; choose another name for the new one"
                )
        return delta

    def _commit(
        self, delta: DeltaTable, table: Table, key: str, fresh: pa.Table | None, outcome: Outcome
    ) -> bool:
        """Rows and ledger entry as the version that follows `delta`'s; False where that one is taken."""
        before, number = delta.version(), self._ledger.prepare(key, outcome)
        properties = CommitProperties(app_transactions=[Transaction(key, number)], max_commit_retries=0)
        failpoints.hit("loader.before_commit")
        try:
            if fresh is not None and fresh.num_rows:
                write_deltalake(
                    delta, fresh, mode="append", schema_mode="merge", commit_properties=properties
                )
            else:
                delta.create_write_transaction([], "append", delta.schema(), commit_properties=properties)
        except CommitFailedError:
            return False
        self._files.settle(table.name, before)
        failpoints.hit("loader.after_commit")
        return True

    @contextmanager
    def _stored(
        self, name: str, columns: list[str] | None = None, only: ds.Expression | None = None
    ) -> Iterator[duckdb.DuckDBPyConnection | None]:
        """A table as `stored` in a DuckDB that is nowhere; None where there is no such table."""
        with self._translated():
            delta = self._files.find(name)
            if delta is None:
                log.warning("there is no table %s in %s: nothing is in it", name, self.url)
                yield None
                return
            scanner = delta.to_pyarrow_dataset().scanner(columns=columns, filter=only)
            with connect() as connection:
                connection.register("stored", scanner.to_reader())
                yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The errors of others as ours."""
        try:
            yield
        except (duckdb.DataError, duckdb.InvalidInputException) as error:
            raise Terminal(str(error).partition("\n")[0]) from error
        except (DeltaError, duckdb.Error, OSError, pa.ArrowException) as error:
            raise Unavailable(f"{self.url}: {str(error).partition(chr(10))[0]}") from error


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
