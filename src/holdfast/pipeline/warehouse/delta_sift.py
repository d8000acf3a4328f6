"""The sifting of a batch for Delta: which rows are new, and how they look as columns.

A DuckDB in memory does it, with the very statements of the DuckDB warehouse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import duckdb
import numpy as np
import pyarrow as pa

from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.warehouse.contract import Load, Outcome
from holdfast.pipeline.warehouse.delta_data import read_hashes, read_rows
from holdfast.pipeline.warehouse.delta_index import HashIndex
from holdfast.pipeline.warehouse.duck_file import QUERIES
from holdfast.pipeline.warehouse.incoming import incoming, outcomes
from holdfast.pipeline.warehouse.projection import projection
from holdfast.pipeline.warehouse.queries import load_queries
from holdfast.pipeline.warehouse.tables import Table

OWN = load_queries("delta.sql")
_COMPARED = ["transaction_id", "type", "key", "data", "data_base64"]
_NOTHING = pa.table({name: pa.array([], pa.string()) for name in _COMPARED})


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


def sift(stored: pa.Table, table: Table, loads: Sequence[Load]) -> tuple[pa.Table, list[Outcome]]:
    """The rows that are to go in, as the table's columns, and the ledger's entry for each load."""
    with connect() as connection:
        connection.register("incoming", incoming(loads))
        connection.register("stored", stored)
        for statement in (OWN["standing"], QUERIES["suspects"], QUERIES["rivals"]):
            connection.execute(statement)
        rivals = connection.execute(QUERIES["rivals_found"]).fetchall()
        fresh = _project(connection, table, "WHERE row NOT IN (SELECT row FROM rivals)")
    return fresh, outcomes(loads, rivals)


def projected(table: Table, loads: Sequence[Load]) -> pa.Table:
    """Rows as the table's columns; raises DuckDB's errors where one does not fit."""
    with connect() as connection:
        connection.register("incoming", incoming(loads))
        return _project(connection, table)


def _project(connection: duckdb.DuckDBPyConnection, table: Table, where: str = "") -> pa.Table:
    columns = ", ".join(f'{value} AS "{name}"' for name, value in projection(table).items())
    found: pa.Table = connection.sql(
        f"SELECT {columns} FROM incoming {where}",  # noqa: S608 - the mapping is checked
        params={"now": datetime.now(UTC)},
    ).to_arrow_table()
    return found
