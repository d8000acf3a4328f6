"""The peers of the ingest: two loops that anybody might write, from a channel into a DuckDB table."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from bench.feed import BATCH, CHANNEL
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.staging import read_range
from holdfast.pipeline.offsets import ChannelPartition


def bulk(url: str, events: int, where: Path) -> float:
    """Events per second with DuckDB's own bulk insert from Arrow: no WAL, no ledger, no look for doubles."""
    with Connection([url]) as connection, duckdb.connect(str(where / "bulk.duckdb")) as target:
        target.register("batch", next(_batches(connection, 1)))
        target.execute("CREATE TABLE events AS SELECT * FROM batch LIMIT 0")
        began = time.perf_counter()
        for batch in _batches(connection, BATCH):
            target.register("batch", batch)
            target.execute("INSERT INTO events SELECT * FROM batch")
        took = time.perf_counter() - began
        [[count]] = target.execute("SELECT count(DISTINCT id) FROM events").fetchall()
    if count != events:
        raise SystemExit(f"bulk: {count} events instead of {events}")
    return events / took


def rows(url: str, events: int, where: Path) -> float:
    """As the seed has it: a statement for each event, a unique index, conflicts ignored."""
    insert = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
    with Connection([url]) as connection, duckdb.connect(str(where / "rows.duckdb")) as target:
        target.execute(
            "CREATE TABLE events (transaction_id TEXT, id TEXT, source TEXT, type TEXT, "
            "time TIMESTAMPTZ, data TEXT)"
        )
        target.execute("CREATE UNIQUE INDEX by_transaction ON events (transaction_id)")
        columns = ["id", "id", "source", "type", "time", "data"]
        found = next(_batches(connection, events)).slice(0, events)
        began = time.perf_counter()
        for row in zip(*(found[name].to_pylist() for name in columns), strict=True):
            target.execute(insert, row)
        took = time.perf_counter() - began
    return events / took


def _batches(connection: Connection, size: int) -> Iterator[pa.Table]:
    """The channel as Arrow tables of so many rows, straight from its store."""
    [backend], gathered = connection.backends, list[pa.RecordBatch]()
    end = connection.run(backend.log.extent(CHANNEL)).last
    assert end is not None
    for batch in read_range(connection, ChannelPartition(0, CHANNEL), None, end):
        gathered.append(batch)
        if sum(each.num_rows for each in gathered) >= size:
            yield pa.Table.from_batches(gathered)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered)
