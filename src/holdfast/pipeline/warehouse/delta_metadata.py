"""What a Delta warehouse holds besides events: its ledger, the schemas of channels, and failed events.

    _holdfast/ledger/{number}.json

holds the ledger's entries for all keys of one commit. It means nothing until a commit of a table names its
number under these keys. So one that a writer left behind when it died, or when another was faster, does no
harm. A key is forgotten after a while, by the table's log, too, so that neither grows without end: the WAL
does not ask for it any more by then, and rows are told apart by their own ids anyway.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import duckdb
import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from holdfast.model.errors import ObjectConflict
from holdfast.pipeline.stores import ObjectStore
from holdfast.pipeline.warehouse.contract import FailedEvent, LoadOutcome, Status
from holdfast.pipeline.warehouse.delta_files import DeltaFiles, live_files
from holdfast.pipeline.warehouse.duck import QUERIES
from holdfast.pipeline.warehouse.schemas import ChannelSchema, from_row

LEDGER = "_holdfast/ledger"
LEDGER_KEPT = timedelta(days=31)
"""A day more than the log of a table keeps them."""
_DRAWN = 20
"""Bits of a number that are drawn; those before them are the time, in milliseconds."""
SCHEMAS = "holdfast_schemas"
SCHEMAS_SCHEMA = pa.schema(
    {
        "channel": pa.string(),
        "version": pa.int32(),
        "table": pa.string(),
        "fields": pa.string(),
        "left_out": pa.list_(pa.string()),
        "since": pa.timestamp("us", "UTC"),
        "cause": pa.string(),
    }
)
FAILED = "failed_events"
FAILED_SCHEMA = pa.schema(
    {
        field.name: {
            "failed_at": pa.timestamp("us", "UTC"),
            "last_retry_at": pa.timestamp("us", "UTC"),
            "resolved_at": pa.timestamp("us", "UTC"),
            "created_at": pa.timestamp("us", "UTC"),
            "updated_at": pa.timestamp("us", "UTC"),
            "retry_count": pa.int32(),
            "partition": pa.int32(),
            "max_retries_exceeded": pa.bool_(),
        }.get(field.name, pa.string())
        for field in fields(FailedEvent)
    }
)


class DeltaLedger:
    """What became of each key."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def find(self, delta: DeltaTable, key: str) -> LoadOutcome | None:
        """What this version of the table says of a key."""
        number = delta.transaction_version(key)
        if number is None:
            return None
        found = orjson.loads(self._store.get(_object_name(number)))[key]
        return LoadOutcome(
            found["inserted"], found["duplicates"], tuple(found["conflicts"]), found["refused"]
        )

    def prepare(self, outcomes: Mapping[str, LoadOutcome]) -> int:
        """Write down what is to become of keys; returns the number for the commit."""
        entries = {key: outcome._asdict() for key, outcome in outcomes.items()}
        body = orjson.dumps(entries, option=orjson.OPT_SORT_KEYS)
        while True:
            number = (_milliseconds(datetime.now(UTC)) << _DRAWN) | secrets.randbits(_DRAWN)
            try:
                self._store.put(_object_name(number), body)
                return number
            except ObjectConflict:  # a number that was drawn before
                continue

    def clean(self, now: datetime) -> int:
        """Remove what is forgotten, the oldest first; returns how many."""
        oldest, removed = _object_name(_milliseconds(now - LEDGER_KEPT) << _DRAWN), 0
        for entry in self._store.list(LEDGER):
            if entry.name >= oldest:
                break
            self._store.delete(entry.name)
            removed += 1
        return removed


def _milliseconds(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def _object_name(number: int) -> str:
    return f"{LEDGER}/{number:019}.json"


def read_schemas(files: DeltaFiles) -> list[ChannelSchema]:
    """All versions of the schemas of channels."""
    delta = files.find(SCHEMAS)
    if delta is None:
        return []
    rows = files.dataset(SCHEMAS, delta, live_files(delta)).to_table()
    return [from_row([row[name] for name in SCHEMAS_SCHEMA.names]) for row in rows.to_pylist()]


def put_schemas(files: DeltaFiles, news: Sequence[ChannelSchema], _: object = None) -> None:
    """Add versions. Two writers may add the same one: what it covers is widened by the next batch."""
    delta = files.open(SCHEMAS, SCHEMAS_SCHEMA)
    before = delta.version()
    columns = zip(*(each.to_row() for each in news), strict=True)
    write_deltalake(delta, pa.table([list(each) for each in columns], schema=SCHEMAS_SCHEMA), mode="append")
    files.sync_commits(SCHEMAS, before)


def put_failed(files: DeltaFiles, events: Sequence[FailedEvent]) -> None:
    """Write rows, over those of the same ids."""
    rows = [{field.name: getattr(event, field.name) for field in fields(FailedEvent)} for event in events]
    delta = files.open(FAILED, FAILED_SCHEMA)
    before = delta.version()
    news = pa.Table.from_pylist(rows, FAILED_SCHEMA)
    # Without deltalake's retries: they do not see that a file that is merged into was replaced meanwhile.
    merge = delta.merge(
        news,
        "old.id = new.id",
        source_alias="new",
        target_alias="old",
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    files.sync_commits(FAILED, before)


def find_failed(
    connection: duckdb.DuckDBPyConnection, status: Status | None, limit: int
) -> list[FailedEvent]:
    """Rows of the table, which stands as `stored`, the last to fail first."""
    query = QUERIES["failed"].replace("failed_events", "stored").replace("id::VARCHAR AS id, *", "id, *")
    found: pa.Table = connection.sql(query, params=[status, status, limit]).to_arrow_table()
    return [FailedEvent(**row) for row in found.to_pylist()]
