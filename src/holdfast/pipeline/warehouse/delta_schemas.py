"""The table of schemas in a Delta warehouse."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake import write_deltalake

from holdfast.pipeline.warehouse.delta_files import DeltaFiles, live_files
from holdfast.pipeline.warehouse.schemas import Schema, from_row

TABLE = "holdfast_schemas"
SCHEMA = pa.schema(
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


def read_schemas(files: DeltaFiles) -> list[Schema]:
    """All versions of the schemas of channels."""
    delta = files.find(TABLE)
    if delta is None:
        return []
    rows = files.dataset(TABLE, delta, live_files(delta)).to_table()
    return [from_row([row[name] for name in SCHEMA.names]) for row in rows.to_pylist()]


def put_schemas(files: DeltaFiles, news: Sequence[Schema], _: object = None) -> None:
    """Add versions. Two writers may add the same one: what it covers is widened by the next batch."""
    delta = files.open(TABLE, SCHEMA)
    before = delta.version()
    columns = zip(*(each.to_row() for each in news), strict=True)
    write_deltalake(delta, pa.table([list(each) for each in columns], schema=SCHEMA), mode="append")
    files.settle(TABLE, before)
