"""Pages of the log as Arrow record batches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import orjson
import pyarrow as pa

from holdfast.model.log import Page, joined
from holdfast.pipeline.offsets import ChannelPartition

SCHEMA = pa.schema(
    {
        "channel": pa.string(),
        "position": pa.string(),
        "id": pa.string(),
        "source": pa.string(),
        "type": pa.string(),
        "key": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "headers": pa.map_(pa.string(), pa.string()),
        "data": pa.binary(),
        "partition": pa.int32(),
    }
)


def to_batch(spot: ChannelPartition, page: Page) -> pa.RecordBatch:
    """A page's events as rows, in their order."""
    return to_one_batch([(spot, page)])


def to_one_batch(pages: Sequence[tuple[ChannelPartition, Page]]) -> pa.RecordBatch:
    """The events of many pages as rows, in their order: small batches cost more than what they hold."""
    spots = [spot for spot, page in pages for _ in page.positions]
    page = pages[0][1] if len(pages) == 1 else joined([page for _, page in pages])
    names = ("position", "id", "source", "type", "key", "time")
    plain = (page.positions, page.ids, page.sources, page.types, page.keys, page.times)
    columns = [pa.array(values, SCHEMA.field(name).type) for name, values in zip(names, plain, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([spot.channel for spot in spots], pa.string()),
            *columns,
            _headers(page),
            pa.array(page.data, pa.binary()),
            pa.array([spot.partition for spot in spots], pa.int32()),
        ],
        schema=SCHEMA,
    )


def headers_text(column: pa.ChunkedArray) -> pa.Array:
    """Headers as JSON objects with their names in order."""
    if all(not len(chunk.keys) for chunk in column.chunks):
        return pa.repeat(pa.scalar("{}"), len(column))
    return pa.array(
        [
            orjson.dumps(dict(pairs or ()), option=orjson.OPT_SORT_KEYS).decode()
            for pairs in column.to_pylist()
        ],
        pa.string(),
    )


def _headers(page: Page) -> pa.MapArray:
    offsets = [0, *accumulate(map(len, page.headers))]
    names = pa.array(chain.from_iterable(page.headers), pa.string())
    values = pa.array(chain.from_iterable(each.values() for each in page.headers), pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), names, values)
