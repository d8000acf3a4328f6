"""Words for tests of the WAL: a clock that they move, rows with ids, a WAL in a folder, and its evidence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from holdfast.model.position import format_position
from holdfast.pipeline.arrow import SCHEMA
from holdfast.pipeline.ingest.staging import stage
from holdfast.pipeline.ingest.validation import ValidationRules
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Wal, WalBatch, WalSettings, segments
from holdfast.pipeline.wal.batch import batch_of
from holdfast.pipeline.wal.segments import healthy, row_names
from holdfast.pipeline.warehouse import Load, LoadOutcome, Tables, Warehouse, open_warehouse
from holdfast.pipeline.warehouse.tables import DAY

CHANNEL = "orders"
START = datetime(2026, 3, 1, tzinfo=UTC)


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, **by: float) -> None:
        self.now += timedelta(**by)


def position(number: int) -> str:
    return format_position(1, number)


def source_rows(
    ids: Iterable[str],
    *,
    first: int = 1,
    channel: str = CHANNEL,
    data: Sequence[bytes] | None = None,
    **row: Any,
) -> pa.RecordBatch:
    """Rows as the source gives them; the data is the id, unless it is given."""
    names = list(ids)
    bodies = data or [json.dumps({"id": name}).encode() for name in names]
    return pa.RecordBatch.from_pylist(
        [
            {
                "channel": channel,
                "position": position(first + number),
                "id": name,
                "source": "default",
                "type": "event",
                "key": None,
                "time": START,
                "headers": [],
                "data": body,
                "partition": 0,
            }
            | row
            for number, (name, body) in enumerate(zip(names, bodies, strict=True))
        ],
        SCHEMA,
    )


def load(warehouse: Warehouse, key: str, rows: pa.Table) -> LoadOutcome:
    """Load rows under one key."""
    [outcome] = warehouse.load([Load(key, tuple(rows["channel"].unique().to_pylist()), rows)])
    return outcome


def result(found: Sequence[tuple[WalBatch, Result]]) -> Result:
    """What became of the only batch."""
    [(_, result)] = found
    return result


def name(rows: pa.Table, number: int) -> str:
    """What a row is called in its batch."""
    return str(row_names(rows)[number])


class Place:
    """A WAL and a warehouse in a folder."""

    def __init__(
        self,
        folder: Path,
        *,
        tables: Tables | None = None,
        rules: ValidationRules | None = None,
        warehouse: str | None = None,
        **knobs: Any,
    ) -> None:
        self.folder, self.clock = folder, Clock()
        self.tables, self.rules = tables or Tables(), rules or ValidationRules()
        self.settings = WalSettings(path=str(folder / "wal"), **knobs)
        self.wal = Wal(open_store(self.settings.path), self.settings, self.clock)
        self.file = folder / "warehouse.duckdb"
        self.url = warehouse or f"duckdb://{self.file}"
        self.warehouse = open_warehouse(self.url, self.tables)

    def loader(self, holder: str = "tester") -> Loader:
        return Loader(self.wal, self.warehouse, holder=holder, chance=lambda: 0.5)

    def commit(self, *rows: pa.RecordBatch, after: str | None = None) -> WalBatch:
        """Stage rows, each record batch as a segment, and make them one pending batch."""
        staged = [
            part for each in rows for part in stage(self.wal.store, [each], self.rules, {}, self.clock())
        ]
        whole = batch_of(staged, self.clock())
        parts = tuple(part._replace(after=after) for part in whole.parts)
        return self.wal.commit(WalBatch(parts, whole.segments, whole.created_at))

    def query(self, question: str) -> list[tuple[Any, ...]]:
        """Ask the warehouse's files themselves."""
        self.warehouse.close()
        if self.url.startswith("duckdb:"):
            with duckdb.connect(str(self.file), read_only=True) as connection:
                return connection.execute(question).fetchall()
        with duckdb.connect() as connection:
            folder = Path(self.url.removeprefix("delta://"))
            for table in (path.parent for path in folder.glob("*/_delta_log")):
                rows = DeltaTable(table).to_pyarrow_table()
                columns = [name for name in rows.column_names if name != DAY]
                connection.register(table.name, rows.select(columns))
            return connection.execute(question).fetchall()

    def other(self, tables: Tables) -> Warehouse:
        """Another one on the same files."""
        return open_warehouse(self.url, tables)

    def ids(self, table: str = "events") -> list[str]:
        """The ids in the warehouse, each as often as it is there."""
        return [row[0] for row in self.query(f"SELECT id FROM {table} ORDER BY id")]

    def path_of(self, name: str) -> Path:
        return self.folder / "wal" / name


def balance(place: Place) -> tuple[Counter[str], Counter[str]]:
    """I10 from the files themselves: what the warehouse holds, and what it should hold: each event of the WAL
    once, without those that failed."""
    wal = place.wal
    wanted: dict[str, str] = {}
    for name in {*wal.records.names("pending"), *wal.records.names("confirmed")}:
        if wal.gave_up(name) is not None:
            continue
        for row in healthy(wal, name, segments.read_all(wal.store, wal.batch(name).segments)).to_pylist():
            wanted[row["transaction_id"]] = row["id"]
    return Counter(place.ids()), Counter(wanted.values())
