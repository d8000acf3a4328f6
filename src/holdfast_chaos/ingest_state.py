"""The state of an ingest: the cursor that the store has, and the files of WAL and warehouse.

The files are read with tools that know nothing of ours.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable

from holdfast.model.errors import Damaged
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast_chaos.checks.pipeline import IngestState, StoredRow


def read_state(url: str, channel: str, folder: Path, kind: str) -> IngestState:
    """What is there now, whether or not anybody has recovered yet."""
    wal = folder / "wal"
    batches = {record["name"]: record for record in _records(wal / "pending")}
    whole = [*batches.values(), *(record["batch"] for record in _records(wal / "confirmed"))]
    over = {each["name"] for state in ("confirmed", "failed") for each in _records(wal / state)}
    rows, ledger, mirrored = (_duckdb if kind == "duckdb" else _delta)(folder)
    return IngestState(
        _cursor(url, channel),
        {position for record in whole for position in _positions(wal, record)},
        sorted(batches.keys() - over),
        Counter(path.stem.rpartition("@")[2] for path in (wal / "failed").glob("*/*@*.json")),
        rows,
        ledger,
        mirrored,
    )


def totals(folder: Path) -> dict[str, int]:
    """By id: what a DuckDB warehouse serves for the one column that a payload fills."""
    with duckdb.connect(str(folder / "warehouse.duckdb")) as connection:
        if not connection.execute("FROM duckdb_tables() WHERE table_name = 'events'").fetchall():
            return {}
        return dict(connection.execute("SELECT id, total FROM events").fetchall())


def _cursor(url: str, channel: str) -> str:
    with Connection([url]) as connection:
        found = connection.run(connection.backends[0].cursors.all(channel))
    return next((cursor.position or "" for cursor in found if cursor.name == CONSUMER), "")


def _records(folder: Path) -> Iterator[dict[str, Any]]:
    for path in folder.glob("*.json"):
        yield json.loads(path.read_bytes())["record"] | {"name": path.stem}


def _positions(wal: Path, batch: dict[str, Any]) -> Iterator[str]:
    for segment in batch["segments"]:
        if "name" not in batch and not (wal / segment["name"]).exists():
            continue  # of a confirmed batch the segments go first
        data = (wal / segment["name"]).read_bytes()
        if hashlib.sha256(data).hexdigest() != segment["sha256"]:
            raise Damaged(f"{segment['name']} is not what its batch says")
        yield from pq.read_table(io.BytesIO(data), columns=["position"])["position"].to_pylist()


_Warehouse = tuple[list[StoredRow], dict[str, int], Counter[str]]


def _duckdb(folder: Path) -> _Warehouse:
    file = folder / "warehouse.duckdb"
    if not file.exists():
        return [], {}, Counter()
    with duckdb.connect(str(file)) as connection:  # for writing: it may have a log to replay
        there = {row[0] for row in connection.execute("SHOW TABLES").fetchall()}

        def ask(table: str, columns: str) -> list[tuple[Any, ...]]:
            statement = f"SELECT {columns} FROM {table}"  # noqa: S608 - both are written below
            return connection.execute(statement).fetchall() if table in there else []

        rows = [StoredRow(*row) for row in ask("events", 'id, "position", batch')]
        ledger = {key: inserted for key, inserted in ask("holdfast_ledger", "key, inserted") if inserted}
        return rows, ledger, Counter(row[0] for row in ask("failed_events", "event_id"))


def _delta(folder: Path) -> _Warehouse:
    tables = folder / "tables"
    rows = [StoredRow(**row) for row in _table(tables / "events", list(StoredRow._fields))]
    mirrored = Counter(row["event_id"] for row in _table(tables / "failed_events", ["event_id"]))
    return rows, dict(_delta_ledger(tables)), mirrored


def _table(path: Path, columns: list[str]) -> list[dict[str, Any]]:
    if not (path / "_delta_log").exists():
        return []
    found: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table(columns=columns).to_pylist()
    return found


def _delta_ledger(tables: Path) -> Iterator[tuple[str, int]]:
    """The entries that commits of the table name, with the rows that each of them counts."""
    for commit in sorted((tables / "events" / "_delta_log").glob("*.json")):
        for action in map(json.loads, commit.read_text().splitlines()):
            if "txn" in action:
                key, number = action["txn"]["appId"], action["txn"]["version"]
                name = f"{number:019}.json"
                inserted = json.loads((tables / "_holdfast" / "ledger" / name).read_bytes())[key]["inserted"]
                if inserted:
                    yield key, inserted
