"""The sides of a reconciliation as one frame: log, archive, warehouse and failed records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.archive.catalog import frame
from holdfast.pipeline.archive.naming import day_folder
from holdfast.pipeline.reconcile.bounds import Books, Chain
from holdfast.pipeline.reconcile.tasks import COLUMNS, IDENTIFIED, Identify, ReadArchive, ReadFailed
from holdfast.pipeline.scratch import scratch
from holdfast.pipeline.stores.address import cloud_environment
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.warehouse import Warehouse

LOG, ARCHIVE, WAREHOUSE, FAILED = "log", "archive", "warehouse", "failed"


@contextmanager
def sides(
    spark: SparkSession, books: Books, found: Chain, warehouse: Warehouse | None, day: date | None
) -> Iterator[DataFrame]:
    """Records of all sides, each with its `side`, for the length of a block. No warehouse: without it."""
    with ExitStack() as stack:
        frames = {LOG: _log(spark, books, day), ARCHIVE: _archive(spark, books, found, day)}
        wal = books.wal()
        if wal is not None:
            frames[FAILED] = _failed(spark, wal, books.channel, day)
        if wal is not None and warehouse is not None:
            rows = warehouse.events(books.channel, day)
            lent = scratch(spark, wal.settings.path, cloud_environment(), rows, COLUMNS)
            frames[WAREHOUSE] = stack.enter_context(lent)
        named = [each.withColumn("side", F.lit(side)) for side, each in frames.items()]
        yield reduce(lambda one, other: one.unionByName(other), named)


def _log(spark: SparkSession, books: Books, day: date | None) -> DataFrame:
    # What others have of a channel that no store has is to be named as surplus.
    options = {"url": ",".join(books.urls), "channel": books.channel, "failOnMissingChannel": "false"}
    rows = spark.read.format("holdfast").options(**options).load()
    if day is not None:
        rows = rows.where(F.to_date("time") == F.lit(day))
    # Of the data only its MD5 goes on, computed where it is.
    named = rows.withColumn("content", F.md5("data")).select(*IDENTIFIED)
    return named.mapInArrow(Identify(books.channel), COLUMNS)


def _archive(spark: SparkSession, books: Books, found: Chain, day: date | None) -> DataFrame:
    part = "" if day is None else f"/{day_folder(day)}/"
    objects = [each for each in found.objects if part in each.object]
    if books.archive is None or not objects:
        return spark.createDataFrame([], COLUMNS)
    return frame(spark, objects).mapInArrow(ReadArchive(books.archive, cloud_environment()), COLUMNS)


def _failed(spark: SparkSession, wal: Wal, channel: str, day: date | None) -> DataFrame:
    batches = {name.partition("/")[0] for name in wal.journal.names("failed")}
    names = [(name,) for name in sorted(batches) if _may_hold(wal, name, channel)]
    if not names:
        return spark.createDataFrame([], COLUMNS)
    read = ReadFailed(wal.settings.path, cloud_environment(), channel, day)
    return spark.createDataFrame(names, "name string").mapInArrow(read, COLUMNS)


def _may_hold(wal: Wal, batch: str, channel: str) -> bool:
    """Whether failures of a batch may be of a channel. A batch that is gone has left their names."""
    try:
        return any(part.channel == channel for part in wal.parts(batch))
    except NotFound:
        return any(name.startswith(f"{channel}@") for name in wal.failed_names(batch))
    except Damaged:
        return True  # and is told when it is read
