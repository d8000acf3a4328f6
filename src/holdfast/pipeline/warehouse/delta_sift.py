"""The sifting of a batch for Delta: which rows are new, and how they look as columns.

A DuckDB in memory does it, with the very statements of the DuckDB warehouse.
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
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.wal.stored import StoredRows
from holdfast.pipeline.warehouse.contract import Load, Outcome
from holdfast.pipeline.warehouse.damage import advice, is_unread
from holdfast.pipeline.warehouse.delta_data import Staged, read_hashes, read_rows, stage
from holdfast.pipeline.warehouse.delta_index import HashIndex
from holdfast.pipeline.warehouse.duck_file import QUERIES
from holdfast.pipeline.warehouse.incoming import incoming, outcomes
from holdfast.pipeline.warehouse.projection import projection
from holdfast.pipeline.warehouse.queries import load_queries
from holdfast.pipeline.warehouse.schemas import learn
from holdfast.pipeline.warehouse.shape import Shape
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


class Sifted(NamedTuple):
    """What became of a part of some loads, wherever it was done."""

    staged: list[Staged]
    outcomes: dict[str, Outcome]
    hashes: bytes
    """Of the rows in the staged files."""
    seen: Mapping[str, Shape]
    """What was learned of rows that were read here."""
    error: tuple[type[HoldfastError], str] | None = None


@dataclass(frozen=True)
class Sift:
    """For a driver or its executors: loads in, staged data files out. Nothing is visible until a commit."""

    root: str
    environment: Mapping[str, str]
    table: Table
    live: frozenset[str]
    """The data files of the version that is compared with."""

    def __call__(self, loads: Sequence[Load]) -> Sifted:
        """Read, compare, write."""
        try:
            with translated(self.root):
                return self._sifted(loads)
        except (Damaged, Terminal, Unavailable) as error:
            return Sifted([], {}, b"", {}, (type(error), str(error)))

    def _sifted(self, given: Sequence[Load]) -> Sifted:
        loads = [load._replace(rows=load.table) for load in given]
        read = [isinstance(load.rows, StoredRows) for load in given]
        seen = learn([load.table for load, was in zip(loads, read, strict=True) if was])
        store = open_store(self.root, self.environment)
        stored = candidates(store, self.table.name, self.live, incoming(loads))
        fresh, made = sift(stored, self.table, loads)
        staged = stage(store, self.table.name, fresh)
        hashes = np.asarray(fresh["transaction_hash"].to_numpy(), np.int64).tobytes()
        return Sifted(staged, {load.key: each for load, each in zip(loads, made, strict=True)}, hashes, seen)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """The errors of others as ours."""
    try:
        yield
    except (DeltaError, duckdb.Error, NotFound, OSError, pa.ArrowException) as error:
        if isinstance(error, duckdb.DataError | duckdb.InvalidInputException) and not is_unread(error):
            raise Terminal(str(error).partition("\n")[0]) from error
        raise Unavailable(f"{url}: {str(error).partition(chr(10))[0]}{advice(error)}") from error


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
