"""What it costs to find out which rows of a batch a Delta table has already, by the size of the table.

    python -m bench.dedupe --rows 1000000 10000000 --batch 500

A table is filled with rows made by Arrow and brought into order by its upkeep. Then the old way (the hash of
every row is read) and the new one (the index) look up the same batch in turn. Bytes are those that it
asks the system for, from /proc/self/io.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties

from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.warehouse.delta_dedupe import candidates, projected
from holdfast.pipeline.warehouse.delta_files import DeltaFiles, live_files, stage
from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep
from holdfast.pipeline.warehouse.tables import DAY, Table

TABLE = Table()
FILE = 500_000


def main() -> int:
    """Print a line for each size."""
    options = _options()
    chance = np.random.default_rng(7)
    with tempfile.TemporaryDirectory(prefix="holdfast-dedupe-") as folder:
        store, files = open_store(folder), DeltaFiles(folder)
        schema = projected(TABLE, []).schema
        upkeep = TableUpkeep(files, store, TABLE.name, 64 << 20, timedelta(days=1))
        filled = 0
        print(
            f"{'rows':>12} {'files':>6} {'old s':>8} {'new s':>8} {'old bytes':>12} {'new bytes':>12} ratio"
        )
        for wanted in options.rows:
            while filled < wanted:
                count = min(FILE, wanted - filled)
                staged = stage(store, TABLE.name, _rows(schema, chance, count, filled))
                delta = files.open(TABLE.name, schema.append(pa.field(DAY, pa.date32())), DAY)
                delta.create_write_transaction(
                    [each.added() for each in staged],
                    "append",
                    delta.schema(),
                    DAY,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
                filled += count
                upkeep.step(datetime.now(UTC))
            live = set(live_files(files.open(TABLE.name, schema))["path"].to_pylist())
            batch = _rows(schema, chance, options.batch, filled)
            _measure(store, live, batch, wanted, options.rounds)
    return 0


def _measure(store: ObjectStore, live: Collection[str], batch: pa.Table, rows: int, rounds: int) -> None:
    old: list[tuple[float, int]] = []
    new: list[tuple[float, int]] = []
    for _ in range(rounds):
        old.append(_cost(lambda: _scan(store, live, batch)))
        new.append(_cost(lambda: candidates(store, TABLE.name, live, batch)))
    seconds = [statistics.median(each[0] for each in way) for way in (old, new)]
    size = [statistics.median(each[1] for each in way) for way in (old, new)]
    print(
        f"{rows:>12,} {len(live):>6} {seconds[0]:>8.3f} {seconds[1]:>8.3f} "
        f"{size[0]:>12,.0f} {size[1]:>12,.0f} {size[0] / size[1]:.1f}",
        flush=True,
    )


def _scan(store: ObjectStore, live: Collection[str], batch: pa.Table) -> int:
    """As it was: the hash of every row of every file."""
    hashes, found = batch["transaction_hash"].to_numpy(), 0
    for path in live:
        with store.reader(f"{TABLE.name}/{path}") as file:
            column = pq.ParquetFile(file).read(["transaction_hash"])["transaction_hash"]
        found += int(np.isin(column.to_numpy(), hashes).sum())
    return found


def _cost(work: Callable[[], object]) -> tuple[float, int]:
    began, before = time.perf_counter(), _bytes_read()
    work()
    return time.perf_counter() - began, _bytes_read() - before


def _bytes_read() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.split("rchar:")[1].split()[0])


def _rows(schema: pa.Schema, chance: np.random.Generator, count: int, first: int) -> pa.Table:
    """Rows of one day with hashes drawn at random."""
    hashes = chance.integers(-(2**63), 2**63 - 1, count, np.int64)
    numbers = pa.array(np.arange(first, first + count))
    text = numbers.cast(pa.string())
    when = pa.array(
        [datetime(2026, 3, 1, tzinfo=UTC) + timedelta(days=first // 5_000_000)] * count,
        schema.field("time").type,
    )
    columns = {
        "transaction_hash": pa.array(hashes),
        "transaction_id": pa.array(hashes).cast(pa.string()),
        "time": when,
        "ingested_at": when,
        "partition": pa.array(np.zeros(count, np.int32)),
        "data_base64": pa.nulls(count, pa.string()),
        "key": pa.nulls(count, pa.string()),
        "position": text,
        "id": text,
    }
    same = pa.array(["orders"] * count)
    return pa.table({field.name: columns.get(field.name, same).cast(field.type) for field in schema})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What deduplication reads, by the size of a Delta table.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
