"""Delta as a warehouse: a folder or a bucket of Delta tables, for clusters and other engines to read.

A commit of a table carries the rows of some loads and, as an application transaction for each key, the number
of the ledger's object that has their entries. deltalake records such transactions and does not enforce them.
So a load looks its keys up and compares with the rows of one version of the table, and commits as the very
next version or not at all; where another writer was faster, it begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import fields
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property, partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from holdfast import failpoints
from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.stores import ObjectStore, cloud_environment, open_store
from holdfast.pipeline.wal.segments import SCHEMA, StoredRows
from holdfast.pipeline.warehouse.contract import FailedEvent, Load, LoadOutcome, Status, StoredEvent
from holdfast.pipeline.warehouse.delta_dedupe import (
    StagedPart,
    StageNewRows,
    memory_database,
    projected,
    translated_errors,
)
from holdfast.pipeline.warehouse.delta_files import (
    NO_HOOKS,
    DeltaFiles,
    StagedFile,
    between,
    discard,
    live_files,
    read_file,
    removal,
    stage,
)
from holdfast.pipeline.warehouse.delta_metadata import (
    FAILED,
    DeltaLedger,
    find_failed,
    put_failed,
    put_schemas,
    read_schemas,
)
from holdfast.pipeline.warehouse.duck import QUERIES, first_times
from holdfast.pipeline.warehouse.loads import TaskRunner, by_table, run_in_place, task_shares, total
from holdfast.pipeline.warehouse.schemas import ChannelSchemas, learn, merged
from holdfast.pipeline.warehouse.tables import DAY, FIXED, Table, Tables, mapped

log = logging.getLogger(__name__)
Decide = Callable[[DeltaTable, Table, Sequence[Load]], tuple[list[StagedFile], list[LoadOutcome]]]
"""From a version of a table and loads that it does not know to the files that are to go in, and the ledger's
entry for each load. Columns may be learned by that: then it is asked again."""
Bounds = dict[str, tuple[object, object]]
"""The least and the greatest value of columns that are looked for."""
_COMPARED = [name for name in FIXED if name != "batch"]
_TRIES = 10
_RECENT = 10
"""Versions that are synced again where the ledger knows a key already."""
_CHUNK = 100_000


class DeltaWarehouse:
    """Every table is a folder of its own under the root; several processes may write."""

    layer = "delta_commit"

    def __init__(self, root: str, tables: Tables, run_tasks: TaskRunner = run_in_place) -> None:
        self._run_tasks, self.reads_segments = run_tasks, run_tasks is not run_in_place
        self.url = f"delta+{root}" if "://" in root else f"delta://{root}"
        self._tables, self._files = tables, DeltaFiles(root)
        self._root = root
        self._schemas = ChannelSchemas(
            tables, partial(read_schemas, self._files), partial(put_schemas, self._files)
        )

    def load(self, loads: Sequence[Load]) -> list[LoadOutcome]:
        found: dict[str, list[LoadOutcome]] = {load.key: [] for load in loads}
        with self._translated():
            at_hand = [each.table for each in loads if not isinstance(each.rows, StoredRows)]
            # The others are learned from by whoever reads them.
            self._schemas.observe(learn(at_hand), lambda: self.rehearse(pa.concat_tables(at_hand)))
            tables = list(by_table(self._schemas, loads))
        if len(tables) > 1:  # else a row that does not fit is found before anything is committed
            with self._translated():
                for table, its in tables:
                    projected(table, [each for each in its if not isinstance(each.rows, StoredRows)])
        for table, its in tables:
            for load, outcome in zip(its, self._load_table(table, its, self._stage_new), strict=True):
                found[load.key].append(outcome)
        return [total(found[load.key]) for load in loads]

    def _stage_new(
        self, delta: DeltaTable, table: Table, loads: Sequence[Load]
    ) -> tuple[list[StagedFile], list[LoadOutcome]]:
        live = frozenset(live_files(delta)["path"].to_pylist())
        stage_part = StageNewRows(self._root, cloud_environment(), table, live)
        run_tasks = (
            self._run_tasks if any(isinstance(load.rows, StoredRows) for load in loads) else run_in_place
        )
        found = run_tasks(stage_part, task_shares(loads))
        if _overlap(found):  # the same event in two parts: only one of them may have it
            self._discard(table, found)
            found = run_tasks(stage_part, [loads])
        for each in found:
            if each.error is not None:
                self._discard(table, found)
                kind, text = each.error
                raise kind(text)
        self._schemas.observe(merged(part.seen for part in found))
        made = [[part.outcomes[load.key] for part in found if load.key in part.outcomes] for load in loads]
        return [file for part in found for file in part.staged], [total(each) for each in made]

    def _discard(self, table: Table, found: Sequence[StagedPart]) -> None:
        for part in found:
            discard(self._store, table.name, part.staged)

    def rehearse(self, rows: pa.Table) -> None:
        load = Load("", tuple(rows["channel"].unique().to_pylist()), rows)
        with self._translated():
            for table, its in by_table(self._tables, [load]):
                projected(table, its)

    def refuse(self, key: str, channels: Sequence[str], reason: str) -> LoadOutcome:
        load, refused = Load(key, tuple(channels), SCHEMA.empty_table()), LoadOutcome(0, 0, (), reason)
        return total(
            self._load_table(table, its, lambda *_: ([], [refused]))[0]
            for table, its in by_table(self._tables, [load])
        )

    def outcome(self, key: str, channels: Sequence[str]) -> LoadOutcome | None:
        found = []
        with self._translated():
            for table in sorted(set(map(self._tables.of, channels)), key=lambda each: each.name):
                delta = self._files.find(table.name)
                known = None if delta is None else self._known(delta, table, key)
                if known is None:
                    return None
                found.append(known)
        return total(found)

    def replace(self, batch: str, spot: ChannelPartition, positions: Sequence[str], rows: pa.Table) -> int:
        """The files that have some of the positions are written anew."""
        load = Load(batch, (spot.channel,), rows)
        with self._translated():
            table, name = self._schemas.of(spot.channel), self._tables.of(spot.channel).name
            for _ in range(_TRIES):
                delta = self._open(table, grow=True)
                actions: list[AddAction | RemoveAction] = []
                staged, removed = stage(self._store, name, projected(table, [load])), 0
                for file in self._files_at(delta, spot.channel, positions):
                    held = read_file(self._store, name, file["path"], file["size_bytes"])
                    others = held.filter(pc.invert(_is_at(held, spot, positions)))
                    if others.num_rows == held.num_rows:
                        continue
                    removed += held.num_rows - others.num_rows
                    staged += stage(self._store, name, others)
                    actions.append(removal(file))
                actions += [each.added() for each in staged]
                failpoints.hit("repair.before_commit")
                if not actions or self._committed(
                    delta, table, actions, CommitProperties(max_commit_retries=0)
                ):
                    return removed
                discard(self._store, name, staged)
        raise Unavailable(f"{self.url}: other writers of {name!r} were faster {_TRIES} times")

    def _files_at(self, delta: DeltaTable, channel: str, positions: Sequence[str]) -> list[dict[str, Any]]:
        """Files that may have rows at these positions."""
        files = live_files(delta)
        fits = between(files, "channel", channel, channel) & between(
            files, "position", min(positions), max(positions)
        )
        found: list[dict[str, Any]] = files.filter(fits).to_pylist() if positions else []
        return found

    def put_failed(self, events: Sequence[FailedEvent]) -> None:
        if not events:
            return None
        with self._translated():
            for _ in range(_TRIES):
                with suppress(CommitFailedError):
                    return put_failed(self._files, events)
        raise Unavailable(f"{self.url}: other writers of {FAILED!r} were faster {_TRIES} times")

    def failed(self, status: Status | None = None, limit: int = 1000) -> list[FailedEvent]:
        with self._stored(FAILED) as connection:
            return [] if connection is None else find_failed(connection, status, limit)

    def events(self, channel: str, day: date | None = None) -> Iterator[pa.RecordBatch]:
        midnight = None if day is None else datetime.combine(day, time(), UTC)
        only: Bounds = {"channel": (channel, channel)}
        if midnight is not None:  # other writers' statistics have no more than milliseconds
            end = midnight + timedelta(days=1) - timedelta(microseconds=1)
            only["time"] = (midnight - timedelta(milliseconds=1), end)
        table, since = self._first_times(channel, only)
        read = [*_COMPARED, *table.computed]
        with self._stored(table.name, read, only) as connection:
            if connection is not None:
                query = QUERIES["events"].format(table="stored", mapped=mapped(table))
                found = connection.sql(query, params={"channel": channel, "day": midnight} | since)
                reader: pa.RecordBatchReader = found.to_arrow_reader(_CHUNK)
                yield from reader

    def _first_times(self, channel: str, only: Bounds) -> tuple[Table, dict[str, object]]:
        """A channel's table with the columns that are there, and since when each has values. What is stored
        is read once: the whole table for columns of the mapping, which are few, and only what is asked for
        where columns were learned, which every table has."""
        with self._translated():
            table = self._schemas.of(channel)
            delta = self._files.find(table.name)
            table = table.within(() if delta is None else [field.name for field in delta.schema().fields])
        since: dict[str, object] = {}
        bounds = ([each.name for each in table.columns], None), ([each.name for each in table.typed], only)
        for columns, where in bounds:
            if columns:
                with self._stored(table.name, ["channel", "ingested_at", *columns], where) as connection:
                    if connection is not None:
                        since |= first_times(connection, "stored", channel, columns)
        return table, since

    def holds(self, channel: str, transaction_ids: Sequence[str]) -> set[str]:
        with self._stored(self._tables.of(channel).name, ["transaction_id"]) as connection:
            if connection is None:
                return set()
            query = QUERIES["holds"].format(table="stored")
            return {row[0] for row in connection.execute(query, [list(transaction_ids)]).fetchall()}

    def find(self, event_id: str, channels: Sequence[str]) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        wanted = [field.name for field in fields(StoredEvent)]
        for name in {self._tables.of(channel).name for channel in channels}:
            with self._stored(name, wanted, {"id": (event_id, event_id)}) as connection:
                if connection is not None:
                    query = QUERIES["find"].format(table="stored")
                    rows = connection.execute(query, [event_id, list(channels)]).fetchall()
                    found += (StoredEvent(*row) for row in rows)
        return found

    def close(self) -> None:
        """There is nothing to let go of: readers and writers do not exclude each other."""

    @cached_property
    def _store(self) -> ObjectStore:
        return open_store(self._root)

    @cached_property
    def _ledger(self) -> DeltaLedger:
        return DeltaLedger(self._store)

    def _load_table(self, table: Table, loads: Sequence[Load], decide: Decide) -> list[LoadOutcome]:
        """Load into one table. Returns what the ledger says of each load; where it says nothing, what is
        decided and committed now."""
        with self._translated():
            for _ in range(_TRIES):
                table = self._schemas.grown(table)
                delta = self._open(table, grow=True)
                known = {load.key: self._known(delta, table, load.key) for load in loads}
                news = [load for load in loads if known[load.key] is None]
                staged, made = decide(delta, table, news) if news else ([], [])
                outcomes = {load.key: outcome for load, outcome in zip(news, made, strict=True)}
                is_grown = self._schemas.grown(table) == table
                if not news or (is_grown and self._commit(delta, table, staged, outcomes)):
                    return [known[load.key] or outcomes[load.key] for load in loads]
                discard(self._store, table.name, staged)
        raise Unavailable(f"{self.url}: other writers of {table.name!r} were faster {_TRIES} times")

    def _known(self, delta: DeltaTable, table: Table, key: str) -> LoadOutcome | None:
        """What the ledger says. Whoever committed it may have died before it was durable."""
        found = self._ledger.find(delta, key)
        if found is not None:
            self._files.sync_commits(table.name, max(-1, delta.version() - _RECENT))
        return found

    def _open(self, table: Table, *, grow: bool = False) -> DeltaTable:
        """The table at its latest version; with `grow`, with all the columns of the mapping."""
        wanted = projected(table, []).schema
        delta = self._files.open(table.name, wanted.append(pa.field(DAY, pa.date32())), DAY)
        there = {field.name: field.type for field in pa.schema(delta.schema().to_arrow())}
        if delta.metadata().partition_columns != [DAY]:
            raise InvalidInput(
                f"table {table.name!r} in {self.url} is not partitioned by {DAY}: it is not of this version; "
                "choose another folder, and fill it with holdfast warehouse rebuild"
            )
        for field in wanted:
            found = there.get(field.name, field.type)
            if found != field.type:
                raise InvalidInput(
                    f"column {field.name!r} of table {table.name!r} is {found} in the warehouse and "
                    f"{field.type} in the mapping; choose another name for the new one"
                )
        new = [field for field in wanted if field.name not in there]
        if grow and new:
            before = delta.version()
            delta.alter.add_columns(DeltaSchema.from_arrow(pa.schema(new)).fields)
            self._files.sync_commits(table.name, before)
            return self._open(table)
        return delta

    def _commit(
        self, delta: DeltaTable, table: Table, staged: list[StagedFile], outcomes: Mapping[str, LoadOutcome]
    ) -> bool:
        """Rows and ledger entries as the version that follows `delta`'s; False where that one is taken."""
        number = self._ledger.prepare(outcomes)
        now = int(datetime.now(UTC).timestamp() * 1000)
        named = [Transaction(key, number, now) for key in outcomes]
        properties = CommitProperties(app_transactions=named, max_commit_retries=0)
        failpoints.hit("loader.before_commit")
        if not self._committed(delta, table, [each.added() for each in staged], properties):
            return False
        failpoints.hit("loader.after_commit")
        return True

    def _committed(
        self,
        delta: DeltaTable,
        table: Table,
        actions: list[AddAction | RemoveAction],
        properties: CommitProperties,
    ) -> bool:
        before = delta.version()
        try:
            delta.create_write_transaction(
                actions,
                "append",
                delta.schema(),
                DAY,
                commit_properties=properties,
                post_commithook_properties=NO_HOOKS,
            )
        except CommitFailedError:
            return False
        self._files.sync_commits(table.name, before)
        return True

    @contextmanager
    def _stored(
        self, name: str, columns: list[str] | None = None, only: Bounds | None = None
    ) -> Iterator[duckdb.DuckDBPyConnection | None]:
        """A table as `stored` in a DuckDB that is nowhere; None where there is no such table. With `only`, of
        files that cannot have values in these bounds nothing is read."""
        with self._translated():
            delta = self._files.find(name)
            if delta is None:
                log.warning("there is no table %s in %s: nothing is in it", name, self.url)
                yield None
                return
            files = live_files(delta)
            for column, bounds in (only or {}).items():
                files = files.filter(between(files, column, *bounds))
            scanner = self._files.dataset(name, delta, files).scanner(columns=columns)
            with memory_database() as connection:
                connection.register("stored", scanner.to_reader())
                yield connection

    def _translated(self) -> AbstractContextManager[None]:
        return translated_errors(self.url)


def _overlap(found: Sequence[StagedPart]) -> bool:
    """Whether two parts have rows with the same hash."""
    hashes = np.frombuffer(b"".join(part.hashes for part in found), np.int64)
    return len(found) > 1 and len(np.unique(hashes)) < len(hashes)


def _is_at(rows: pa.Table, spot: ChannelPartition, positions: Sequence[str]) -> pa.ChunkedArray:
    here = pc.and_(pc.equal(rows["channel"], spot.channel), pc.equal(rows["partition"], spot.partition))
    return pc.and_(here, pc.is_in(rows["position"], pa.array(positions, pa.string())))
