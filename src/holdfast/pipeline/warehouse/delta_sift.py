"""The sifting of a batch for Delta: which rows are new, and how they look as columns.

A DuckDB in memory does it, with the very statements of the DuckDB warehouse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import duckdb
import numpy as np
import pyarrow as pa

from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.wal import segments
from holdfast.pipeline.wal.batch import BatchKey
from holdfast.pipeline.warehouse.contract import Outcome
from holdfast.pipeline.warehouse.delta_data import read_hashes, read_rows
from holdfast.pipeline.warehouse.delta_index import HashIndex
from holdfast.pipeline.warehouse.duck_file import QUERIES
from holdfast.pipeline.warehouse.projection import projection
from holdfast.pipeline.warehouse.queries import load_queries
from holdfast.pipeline.warehouse.tables import Table

OWN = load_queries("delta.sql")
_COMPARED = ["transaction_id", "type", "key", "data", "data_base64"]
_NOTHING = pa.table({name: pa.array([], pa.string()) for name in _COMPARED})
_NOWHERE = {"batch": "", "channel": "", "partition": 0, "now": datetime(1970, 1, 1, tzinfo=UTC)}


@contextmanager
def connect() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that is nowhere."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def candidates(store: ObjectStore, table: str, live: Collection[str], rows: pa.Table) -> pa.Table:
    """Rows of the live files that may be the same events, by their hashes."""
    hashes = rows["transaction_hash"].to_numpy()
    hits, unknown = HashIndex(store, table).find(hashes, live)
    hits |= {path for path in unknown if np.isin(read_hashes(store, table, path), hashes).any()}
    found = [part for path in sorted(hits) for part in read_rows(store, table, path, hashes, _COMPARED)]
    return pa.concat_tables([_NOTHING, *found])


def sift(stored: pa.Table, table: Table, key: str, rows: pa.Table) -> tuple[pa.Table, Outcome]:
    """The rows that are to go in, as the table's columns, and the ledger's entry for them."""
    with connect() as connection:
        connection.register("incoming", rows)
        connection.register("stored", stored)
        for statement in (OWN["standing"], QUERIES["suspects"], QUERIES["rivals"]):
            connection.execute(statement)
        rivals = connection.execute('SELECT "position", same FROM rivals ORDER BY 1').fetchall()
        others = 'WHERE "position" NOT IN (SELECT "position" FROM rivals)'
        fresh = _project(connection, table, others, _given(BatchKey.parse(key.partition("#")[0])))
    conflicts = tuple(position for position, same in rivals if not same)
    return fresh, Outcome(fresh.num_rows, len(rivals) - len(conflicts), conflicts)


def projected(table: Table, batch: BatchKey, rows: pa.Table) -> pa.Table:
    """Rows as the table's columns."""
    with connect() as connection:
        connection.register("incoming", rows)
        return _project(connection, table, "", _given(batch))


def _given(batch: BatchKey) -> dict[str, object]:
    place = {"batch": batch.name, "channel": batch.channel, "partition": batch.partition}
    return place | {"now": datetime.now(UTC)}


def shape(table: Table, rows: pa.Table | None = None) -> pa.Schema:
    """The columns of a table. Given rows are put into them, to see whether they fit."""
    with connect() as connection:
        connection.register("incoming", segments.SCHEMA.empty_table() if rows is None else rows)
        return _project(connection, table, "", _NOWHERE).schema


def _project(
    connection: duckdb.DuckDBPyConnection, table: Table, where: str, given: dict[str, object]
) -> pa.Table:
    columns = ", ".join(f'{value} AS "{name}"' for name, value in projection(table).items())
    found: pa.Table = connection.sql(
        f"SELECT {columns} FROM incoming {where}",  # noqa: S608 - the mapping is checked
        params=given,
    ).to_arrow_table()
    return found
