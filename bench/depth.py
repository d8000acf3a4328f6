"""Depth: what a load costs in a table that is full already."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import duckdb
import pyarrow as pa

from bench.feed import BATCH, CHANNEL, data, tell
from holdfast.pipeline.ingest.validation import ValidationRules, to_segment_rows
from holdfast.pipeline.warehouse import Load, Tables, open_warehouse

SHALLOW = 1_000_000
ROUNDS = 5
_AT_ONCE = 5_000_000
_FIRST = 1_000_000_000

# Rows as loads leave them, without the time that loads take. The hash is what the pipeline makes of a
# transaction id: its first 64 bits, with a sign, so that hashes of new events fall among those of old ones.
_FILL = """
INSERT INTO events (channel, partition, position, id, source, type, time, headers, data, transaction_id,
                    transaction_hash, ingested_at, batch)
SELECT $channel, 0, printf('0001-%016x', i), 'old-' || i, 'default', 'event', now(), '{}',
       '{"n":' || i || ',"text":"' || repeat('x', 150) || '"}', md5(i::VARCHAR),
       (top - CASE WHEN top >= 9223372036854775808 THEN 18446744073709551616 ELSE 0 END)::BIGINT,
       now(), 'filled'
FROM (SELECT i, ('0x' || left(md5(i::VARCHAR), 16))::HUGEINT AS top FROM range($first, $last) AS numbers (i))
"""


def costs(folder: Path, rows: int) -> dict[int, float]:
    """Microseconds per event of a load of one batch, by how many rows the table has."""
    return {depth: _cost(folder, depth) for depth in (min(SHALLOW, rows), rows)}


def _cost(folder: Path, depth: int) -> float:
    file = folder / f"deep-{depth}.duckdb"
    warehouse = open_warehouse(f"duckdb://{file}", Tables())
    warehouse.rehearse(batch(0))  # makes the table
    warehouse.close()
    began = time.perf_counter()
    fill(file, depth)
    tell(
        f"{depth:,} rows filled in within {time.perf_counter() - began:.0f} s, {file.stat().st_size:,} bytes"
    )
    took = []
    for turn in range(ROUNDS):
        rows = batch(turn)
        began = time.perf_counter()
        [outcome] = warehouse.load([Load(_key(turn), (CHANNEL,), rows)])
        took.append(time.perf_counter() - began)
        if outcome.inserted != BATCH:
            raise SystemExit(f"{outcome.inserted} rows went in instead of {BATCH}")
    warehouse.close()
    file.unlink()
    return 1e6 * median(took) / BATCH


def fill(file: Path, depth: int) -> None:
    """Fill the table, some rows at a time: that bounds the memory."""
    with duckdb.connect(str(file)) as connection:
        for first in range(0, depth, _AT_ONCE):
            last = min(depth, first + _AT_ONCE)
            connection.execute(_FILL, {"channel": CHANNEL, "first": first, "last": last})


def batch(turn: int) -> pa.Table:
    """New events, as the WAL has them."""
    first = _FIRST + turn * BATCH
    source = pa.table(
        {
            "partition": pa.repeat(pa.scalar(0, pa.int32()), BATCH),
            "channel": pa.repeat(CHANNEL, BATCH),
            "position": [f"0001-{first + n:016x}" for n in range(BATCH)],
            "id": [f"new-{first + n}" for n in range(BATCH)],
            "source": pa.repeat("default", BATCH),
            "type": pa.repeat("event", BATCH),
            "key": pa.nulls(BATCH, pa.string()),
            "time": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), BATCH),
            "headers": pa.array([[]] * BATCH, pa.map_(pa.string(), pa.string())),
            "data": [data(first + n) for n in range(BATCH)],
        }
    )
    return to_segment_rows(source, ValidationRules())


def _key(turn: int) -> str:
    return f"batch-{turn}"
