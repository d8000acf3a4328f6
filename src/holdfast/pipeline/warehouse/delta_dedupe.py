"""Which rows of loads are new to a Delta table, and their columns, staged as data files.

A DuckDB in memory computes it, with the statements of the DuckDB warehouse.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
from deltalake.exceptions import DeltaError

from holdfast.model.errors import Damaged, HoldfastError, NotFound, Terminal, Unavailable
from holdfast.model.sql_files import load_queries
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal.segments import StoredRows
from holdfast.pipeline.warehouse.contract import Load, LoadOutcome
from holdfast.pipeline.warehouse.damage import advice, is_unread
from holdfast.pipeline.warehouse.delta_files import StagedFile, read_hashes, read_rows, stage
from holdfast.pipeline.warehouse.delta_index import HashIndex
from holdfast.pipeline.warehouse.duck import QUERIES
from holdfast.pipeline.warehouse.loads import incoming_rows, outcomes
from holdfast.pipeline.warehouse.schemas import learn
from holdfast.pipeline.warehouse.structure import Structure
from holdfast.pipeline.warehouse.tables import Table, projection

DELTA_QUERIES = load_queries(__package__, "delta.sql")
_COMPARED = ["transaction_id", "type", "key", "data", "data_base64"]
_NOTHING = pa.table({name: pa.array([], pa.string()) for name in _COMPARED})


@contextmanager
def memory_database() -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB in memory, in UTC."""
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


def new_rows(stored: pa.Table, table: Table, loads: Sequence[Load]) -> tuple[pa.Table, list[LoadOutcome]]:
    """The rows that are to go in, as the table's columns, and the ledger's entry for each load."""
    with memory_database() as connection:
        connection.register("incoming", incoming_rows(loads))
        connection.register("stored", stored)
        for statement in (DELTA_QUERIES["existing"], QUERIES["possible_repeats"], QUERIES["repeats"]):
            connection.execute(statement)
        repeated = connection.execute(QUERIES["repeats_found"]).fetchall()
        fresh = _project(connection, table, "WHERE row NOT IN (SELECT row FROM repeats)")
    return fresh, outcomes(loads, repeated)


class StagedPart(NamedTuple):
    """What came of staging a part of some loads."""

    staged: list[StagedFile]
    outcomes: dict[str, LoadOutcome]
    hashes: bytes
    """Of the rows in the staged files."""
    seen: Mapping[str, Structure]
    """What was learned of rows that were read here."""
    error: tuple[type[HoldfastError], str] | None = None


@dataclass(frozen=True)
class StageNewRows:
    """For a driver or its executors: loads in, staged data files out. Nothing is visible until a commit."""

    root: str
    environment: Mapping[str, str]
    table: Table
    live: frozenset[str]
    """The data files of the version that is compared with."""

    def __call__(self, loads: Sequence[Load]) -> StagedPart:
        """Read, compare, write. An error of ours is returned in the result: Spark would wrap it."""
        try:
            with translated_errors(self.root):
                return self._stage(loads)
        except (Damaged, Terminal, Unavailable) as error:
            return StagedPart([], {}, b"", {}, (type(error), str(error)))

    def _stage(self, given: Sequence[Load]) -> StagedPart:
        loads = [load._replace(rows=load.table) for load in given]
        read = [isinstance(load.rows, StoredRows) for load in given]
        seen = learn([load.table for load, was in zip(loads, read, strict=True) if was])
        store = open_store(self.root, self.environment)
        stored = candidates(store, self.table.name, self.live, incoming_rows(loads))
        fresh, made = new_rows(stored, self.table, loads)
        staged = stage(store, self.table.name, fresh)
        hashes = np.asarray(fresh["transaction_hash"].to_numpy(), np.int64).tobytes()
        return StagedPart(
            staged, {load.key: each for load, each in zip(loads, made, strict=True)}, hashes, seen
        )


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Raise errors of deltalake, DuckDB, Arrow and the stores as `Terminal` or `Unavailable`."""
    try:
        yield
    except (DeltaError, duckdb.Error, NotFound, OSError, pa.ArrowException) as error:
        if isinstance(error, duckdb.DataError | duckdb.InvalidInputException) and not is_unread(error):
            raise Terminal(str(error).partition("\n")[0]) from error
        raise Unavailable(f"{url}: {str(error).partition(chr(10))[0]}{advice(error)}") from error


def projected(table: Table, loads: Sequence[Load]) -> pa.Table:
    """Rows as the table's columns; raises DuckDB's errors where one does not fit."""
    with memory_database() as connection:
        connection.register("incoming", incoming_rows(loads))
        return _project(connection, table)


def _project(connection: duckdb.DuckDBPyConnection, table: Table, where: str = "") -> pa.Table:
    columns = ", ".join(f'{value} AS "{name}"' for name, value in projection(table).items())
    found: pa.Table = connection.sql(
        f"SELECT {columns} FROM incoming {where}",  # noqa: S608 - the mapping is checked
        params={"now": datetime.now(UTC)},
    ).to_arrow_table()
    return found
