"""The table of failed events in a Delta warehouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import duckdb
import pyarrow as pa
from deltalake import CommitProperties

from holdfast.pipeline.warehouse.contract import FailedEvent, Status
from holdfast.pipeline.warehouse.delta_files import DeltaFiles
from holdfast.pipeline.warehouse.duck_file import QUERIES

FAILED = "failed_events"
SCHEMA = pa.schema(
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


def put_failed(files: DeltaFiles, events: Sequence[FailedEvent]) -> None:
    """Write rows, over those of the same ids."""
    rows = [{field.name: getattr(event, field.name) for field in fields(FailedEvent)} for event in events]
    delta = files.open(FAILED, SCHEMA)
    before = delta.version()
    news = pa.Table.from_pylist(rows, SCHEMA)
    # Without deltalake's retries: they do not see that a file that is merged into was replaced meanwhile.
    merge = delta.merge(
        news,
        "old.id = new.id",
        source_alias="new",
        target_alias="old",
        commit_properties=CommitProperties(max_commit_retries=0),
    )
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    files.settle(FAILED, before)


def find_failed(
    connection: duckdb.DuckDBPyConnection, status: Status | None, limit: int
) -> list[FailedEvent]:
    """Rows of the table, which stands as `stored`, the last to fail first."""
    query = QUERIES["failed"].replace("failed_events", "stored").replace("id::VARCHAR AS id, *", "id, *")
    found: pa.Table = connection.sql(query, params=[status, status, limit]).to_arrow_table()
    return [FailedEvent(**row) for row in found.to_pylist()]
