"""Pages of the log as Arrow record batches."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from holdfast.model.log import Page
from holdfast.pipeline.arrow import SCHEMA, to_batch
from holdfast.pipeline.offsets import ChannelPartition


def test_the_columns_are_those_that_spark_expects() -> None:
    spark = StructType()
    for name in ("channel", "position", "id", "source", "type", "key"):
        spark.add(name, StringType())
    spark.add("time", TimestampType()).add("headers", MapType(StringType(), StringType()))
    spark.add("data", BinaryType()).add("partition", IntegerType())
    assert to_arrow_schema(spark, timezone="UTC").equals(SCHEMA)


def test_a_page_becomes_rows() -> None:
    page = Page(
        positions=["0001-01", "0001-02", "0001-03"],
        ids=["a", "b", "c"],
        sources=["default"] * 3,
        types=["event"] * 3,
        keys=["k", None, "ü"],
        times=[0, 1, -1],
        headers=[{"x": "1", "y": "2"}, {}, {"x": ""}],
        data=[b"{}", b"\x00\xff", b""],
    )
    batch = to_batch(ChannelPartition(3, "orders"), page)
    batch.validate(full=True)
    assert batch.schema.equals(SCHEMA)
    assert batch.column("headers").to_pylist() == [[("x", "1"), ("y", "2")], [], [("x", "")]]
    first, second, third = batch.to_pylist()
    assert first["time"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert second["time"].microsecond == 1
    assert third["time"].year == 1969
    assert [row["data"] for row in (first, second, third)] == page.data
    assert [row["key"] for row in (first, second, third)] == page.keys
    assert {(row["channel"], row["partition"]) for row in (first, second, third)} == {("orders", 3)}


def test_an_empty_page_is_an_empty_batch() -> None:
    batch = to_batch(ChannelPartition(0, "orders"), Page([], [], [], [], [], [], [], []))
    assert batch.num_rows == 0
    assert isinstance(batch.column("headers"), pa.MapArray)
