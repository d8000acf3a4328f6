"""The ingest beside two loops that anybody might write: a channel into a table, in events per second.

    python bench/ingest.py                                # 1,000,000 events of each store into each warehouse
    python bench/ingest.py --check                        # small and quick: does everything run?
    python bench/ingest.py --deep 50000000 --store none   # the cost per event in a full table

`holdfast` is the whole way: source, validation, WAL, cursor, loader, warehouse, confirmation. `bulk` reads
the same log and inserts Arrow batches into DuckDB: no WAL, no ledger, no look at what is there. `rows`
inserts one row at a time with `ON CONFLICT DO NOTHING` and a unique index. Nobody's start-up counts: Spark
has run the same job on another channel before, and connections are open.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import pyarrow as pa

import holdfast
from holdfast import Event
from holdfast.embedded import Postgres, Redis
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.driver import Ingest
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.ingest.staging import read_range
from holdfast.pipeline.ingest.validation import Rule, to_segment_rows
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.session import session
from holdfast.pipeline.wal import BatchKey, WalSettings
from holdfast.pipeline.warehouse import Tables, open_warehouse

CHANNEL, WARM_UP = "gbe.events.bench", "gbe.events.warmup"
BATCH, PUBLISHED = 250_000, 10_000
ROWS = 20_000
"""Events for the loop that inserts row by row: its rate does not depend on how many there are."""
DEPTHS = (1_000_000, 50_000_000)
GOALS = {"bulk": 0.5, "rows": 20.0}
SETTINGS = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "512MB"}
Figures = dict[str, list[float]]


def main() -> int:
    """0 when every event arrived once, whatever the goals say; 1 otherwise."""
    options = _options()
    stores = {"all": ["redis", "postgres"], "none": []}.get(options.store, [options.store])
    results: dict[str, Any] = {"machine": os.cpu_count(), "events": options.events}
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="holdfast-bench-") as folder:
        for store in stores:
            results[store] = _side_by_side(store, Path(folder), options)
        if options.deep:
            results["deep"] = _deep(Path(folder), options.deep)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The ingest beside two loops that anybody might write.")
    parser.add_argument("--store", choices=["redis", "postgres", "all", "none"], default="all")
    parser.add_argument("--warehouses", default="duckdb,delta", help="of holdfast")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--master", default="local[*]", help="Spark's")
    parser.add_argument(
        "--deep", type=int, default=0, metavar="ROWS", help="also: a load into a table of so many"
    )
    parser.add_argument("--folder", type=Path, default=None, help="for warehouses and WAL; a real disk")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results here")
    parser.add_argument("--check", action="store_true", help="small and quick: does everything run?")
    found = parser.parse_args()
    if found.check:
        found.events, found.rounds, found.deep = 20_000, 1, 2_000_000
    return found


# side by side


def _side_by_side(store: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with _server(store) as url, session(options.master, name="bench") as spark:
        _publish(url, WARM_UP, min(options.events, 100_000))
        _publish(url, CHANNEL, options.events)
        kinds = options.warehouses.split(",")
        contestants: dict[str, Callable[[Path], float]] = {
            f"holdfast {kind}": partial(_holdfast, spark, url, kind, options.events) for kind in kinds
        }
        contestants |= {
            "bulk": partial(_bulk, url, options.events),
            "rows": partial(_rows, url, min(ROWS, options.events)),
        }
        figures: Figures = {name: [] for name in contestants}
        for turn in range(options.rounds):
            for name in _rotated(list(contestants), turn):
                where = folder / f"{store}-{name.replace(' ', '-')}-{turn}"
                where.mkdir()
                figures[name].append(contestants[name](where))
                _tell(f"{store}: {name}: {figures[name][-1]:,.0f} events/s")
                shutil.rmtree(where)
    return _judge(store, figures)


def _holdfast(spark: Any, url: str, kind: str, events: int, where: Path) -> float:
    """Events per second, from the start of the job to the confirmation of its last batch."""
    target = {"duckdb": f"duckdb://{where}/warehouse.duckdb", "delta": f"delta://{where}/tables"}[kind]

    def job(channel: str) -> Ingest:
        _forget_cursor(url, channel)
        wal = WalSettings.of({}, path=str(where / channel / "wal"))
        plan = IngestPlan((channel,), target, wal, max_rows=BATCH)
        return Ingest(spark, [url], plan, where / channel / "checkpoints")

    job(WARM_UP).run_once()
    measured = job(CHANNEL)
    began = time.perf_counter()
    summary = measured.run_once()
    took = time.perf_counter() - began
    warehouse = open_warehouse(target, Tables())
    ids = [each for batch in warehouse.events(CHANNEL) for each in batch["id"].to_pylist()]
    warehouse.close()
    if (len(ids), len(set(ids)), summary.failed) != (events, events, 0):
        raise SystemExit(f"{kind}: {len(ids)} rows of {len(set(ids))} events instead of {events}")
    return events / took


def _bulk(url: str, events: int, where: Path) -> float:
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


def _rows(url: str, events: int, where: Path) -> float:
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


def _batches(connection: Connection, rows: int) -> Iterator[pa.Table]:
    """The channel as Arrow tables of so many rows, straight from its store."""
    [backend], gathered = connection.backends, list[pa.RecordBatch]()
    end = connection.run(backend.extent(CHANNEL)).last
    assert end is not None
    for batch in read_range(connection, Spot(0, CHANNEL), None, end):
        gathered.append(batch)
        if sum(each.num_rows for each in gathered) >= rows:
            yield pa.Table.from_batches(gathered)
            gathered = []
    if gathered:
        yield pa.Table.from_batches(gathered)


def _judge(store: str, figures: Figures) -> dict[str, Any]:
    medians = {name: median(values) for name, values in figures.items()}
    for name, value in medians.items():
        peers = GOALS.items() if name.startswith("holdfast") else ()
        ratios = [_ratio(value / medians[peer], peer, goal) for peer, goal in peers]
        print(f"{store:9} {name:16} {value:12,.0f} events/s   {'; '.join(ratios)}", flush=True)
    return {"events_per_second": figures, "medians": medians}


def _ratio(found: float, peer: str, goal: float) -> str:
    return f"{found:.2f}× {peer} (goal ≥ {goal:g}×: {_verdict(found >= goal)})"


# a full table


def _deep(folder: Path, rows: int) -> dict[str, Any]:
    """Microseconds per event of a load of one batch, into tables of different sizes."""
    costs = {depth: _cost(folder, depth) for depth in (min(DEPTHS[0], rows), rows)}
    (small, low), (large, high) = costs.items()
    ratio = high / low
    print(
        f"load of {BATCH:,} events: {low:.2f} µs/event with {small:,} rows, {high:.2f} with {large:,}: "
        f"{ratio:.2f}× (goal ≤ 2×: {_verdict(ratio <= 2)})"
    )
    return {"microseconds_per_event": costs, "ratio": ratio}


def _cost(folder: Path, depth: int, rounds: int = 3) -> float:
    file = folder / f"deep-{depth}.duckdb"
    warehouse = open_warehouse(f"duckdb://{file}", Tables())
    warehouse.find("nothing", [CHANNEL])  # makes the table
    warehouse.close()
    fill(file, depth)
    took = []
    for turn in range(rounds):
        rows = batch(turn)
        began = time.perf_counter()
        outcome = warehouse.load(_key(turn), CHANNEL, rows)
        took.append(time.perf_counter() - began)
        if outcome.inserted != BATCH:
            raise SystemExit(f"{outcome.inserted} rows went in instead of {BATCH}")
    warehouse.close()
    file.unlink()
    return 1e6 * median(took) / BATCH


def fill(file: Path, depth: int) -> None:
    """Rows as a load leaves them, without the time that loads take."""
    with duckdb.connect(str(file)) as connection:
        for first in range(0, depth, 5_000_000):
            connection.execute(
                "INSERT INTO events (channel, partition, position, id, source, type, time, headers, data,"
                " transaction_id, transaction_hash, ingested_at, batch) "
                "SELECT $channel, 0, printf('0001-%016x', i), 'old-' || i, 'default', 'event', now(), '{}',"
                " '{\"n\":' || i || ',\"text\":\"' || repeat('x', 150) || '\"}', md5(i::VARCHAR), "
                " (hash(i) >> 1)::BIGINT, now(), 'filled' FROM range($first, $last) AS numbers (i)",
                {"channel": CHANNEL, "first": first, "last": min(depth, first + 5_000_000)},
            )


def batch(turn: int) -> pa.Table:
    """New events, as the WAL has them."""
    first = 1_000_000_000 + turn * BATCH
    names = [f"new-{first + n}" for n in range(BATCH)]
    source = pa.table(
        {
            "position": [f"0001-{first + n:016x}" for n in range(BATCH)],
            "id": names,
            "source": pa.repeat("default", BATCH),
            "type": pa.repeat("event", BATCH),
            "key": pa.nulls(BATCH, pa.string()),
            "time": pa.repeat(pa.scalar(0, pa.timestamp("us", "UTC")), BATCH),
            "headers": pa.array([[]] * BATCH, pa.map_(pa.string(), pa.string())),
            "data": [_data(first + n) for n in range(BATCH)],
        }
    )
    return to_segment_rows(CHANNEL, source, Rule())


def _key(turn: int) -> str:
    first = 1_000_000_000 + turn * BATCH
    return BatchKey(0, CHANNEL, f"0001-{first:016x}", f"0001-{first + BATCH - 1:016x}").name


# around it


@contextmanager
def _server(store: str) -> Iterator[str]:
    if store == "redis":
        with Redis(appendfsync="always") as server:
            yield server.url
    else:
        with Postgres(settings=SETTINGS) as database:
            yield database.create_database("bench")


def _publish(url: str, channel: str, count: int) -> None:
    with holdfast.connect_sync(url) as bus:
        bus.create_channel(channel)
        for first in range(0, count, PUBLISHED):
            numbers = range(first, min(count, first + PUBLISHED))
            bus.publish_many(channel, [Event(_data(n), f"e-{n}") for n in numbers])
    _tell(f"{count:,} events published to {channel}")


def _data(number: int) -> bytes:
    return b'{"n":%d,"text":"%b"}' % (number, b"x" * 150)


def _forget_cursor(url: str, channel: str) -> None:
    with Connection([url]) as connection:
        connection.run(connection.backends[0].detach(channel, "ingest"))


def _rotated(names: list[str], turn: int) -> list[str]:
    place = turn % len(names)
    return names[place:] + names[:place]


def _verdict(met: bool) -> str:
    return "ok" if met else "miss"


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
