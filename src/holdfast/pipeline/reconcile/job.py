"""Reconcile: a Spark job that shows published = archived = ingested + failed, for a channel or a day of it.

Published is what the log holds; for what retention has trimmed it is what the archive's manifests prove. The
comparison is by place in the log and by event, so that losses, doubles and strangers are named, not only
counted: equal sums prove nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.pipeline.connection import Connection
from holdfast.pipeline.failure import explained
from holdfast.pipeline.reconcile.bounds import (
    AFTER_ALL,
    BEFORE_ALL,
    Books,
    Bounds,
    ByPartition,
    Chain,
    bounds,
    chain,
    ends,
    trimmed,
)
from holdfast.pipeline.reconcile.memory import remember
from holdfast.pipeline.reconcile.report import Difference, Kind, Report, Tally, Where, Wrong
from holdfast.pipeline.reconcile.sides import sides
from holdfast.pipeline.warehouse import Warehouse, open_warehouse
from holdfast.pipeline.warehouse.queries import load_queries

LIMIT = 100
QUERIES = load_queries("reconcile.sql", __package__)
_LIMITS = (
    "partition int, until string, ending string, gone string, floor string, archived string, ingested string"
)
_PENDING = "partition int, channel string, first string, last string"


def reconcile(spark: SparkSession, books: Books, day: date | None = None, limit: int = LIMIT) -> Report:
    """Compare, and leave the report in the store for the server to show.

    `limit` bounds the differences that are named; they are counted in any case.
    """
    return _reconcile(spark, books, day, limit, 0)[0]


def examine(spark: SparkSession, books: Books, limit: int) -> tuple[Report, list[Wrong]]:
    """Reconcile, and find the first positions whose rows in the warehouse are not what they should be."""
    return _reconcile(spark, books, None, LIMIT, limit)


def _reconcile(
    spark: SparkSession, books: Books, day: date | None, limit: int, wrong: int
) -> tuple[Report, list[Wrong]]:
    plan = books.plan
    warehouse = None if plan is None else open_warehouse(plan.warehouse, plan.tables)
    try:
        with Connection(books.urls) as connection:
            report, found = _compare(spark, connection, books, warehouse, day, limit, wrong)
            remember(connection, books.namespace, report)
            return report, found
    finally:
        if warehouse is not None:
            warehouse.close()


def _compare(
    spark: SparkSession,
    connection: Connection,
    books: Books,
    warehouse: Warehouse | None,
    day: date | None,
    limit: int,
    wrong: int,
) -> tuple[Report, list[Wrong]]:
    taken, found = bounds(connection, books), chain(books)
    with sides(spark, books, found, warehouse, day) as records:
        try:
            places = _ask(spark, "places", records=records)
            places = places.localCheckpoint()  # read now, and once: what is trimmed from here on was seen
            gone, ending = trimmed(connection, books.channel), ends(connection, books.channel)
            limits = _limits(spark, taken, ending, gone, found.floors(gone))
            if day is not None and warehouse is not None:
                places = _look_up(places, limits, warehouse, books.channel)
            pending = spark.createDataFrame([part[:4] for part in taken.pending], _PENDING)
            fates = _ask(spark, "fates", places=places, limits=limits)
            judged = _ask(spark, "judged", fates=fates, pending=pending)
            report = _report(judged, books, day, limit)
            unreadable = _unreadable(judged) if _has(report, "unreadable") else set()
            report = _with_losses(report, unreadable, found, gone)
            beyond = [(place, end + " ", AFTER_ALL) for place, end in ending.items()]
            return report, _wrong(judged, report, beyond + found.unproven(gone, unreadable), wrong)
        except Exception as error:
            raise explained(error) from error


def _ask(spark: SparkSession, name: str, **frames: DataFrame) -> DataFrame:
    return spark.sql(QUERIES[name].rstrip(";"), None, **frames)


def _limits(
    spark: SparkSession, taken: Bounds, ending: ByPartition, gone: ByPartition, floors: ByPartition
) -> DataFrame:
    columns = (taken.until, ending, gone, floors, taken.archived, taken.ingested)
    rows = [(place, *(each.get(place, BEFORE_ALL) for each in columns)) for place in taken.until]
    return spark.createDataFrame(rows, _LIMITS)


def _look_up(places: DataFrame, limits: DataFrame, warehouse: Warehouse, channel: str) -> DataFrame:
    """Events of a day that stand in the warehouse under another one: published again, with another time."""
    asked = _ask(places.sparkSession, "unknown", places=places, limits=limits).collect()
    held = warehouse.holds(channel, [row.transaction_id for row in asked])
    elsewhere = F.col("transaction_id").isin(*held)
    return places.withColumn("standing", F.when(elsewhere, 1).otherwise(F.col("standing")))


def _report(judged: DataFrame, books: Books, day: date | None, limit: int) -> Report:
    sums = _ask(judged.sparkSession, "sums", judged=judged).collect()
    compared = [row for row in sums if row.compared]
    watched = _watched(books)
    tallies = [each for side in watched for each in _tallies(side, compared)]
    return Report(
        books.channel,
        day,
        **_totals(compared, watched),
        not_compared=sum(row.places for row in sums if not row.compared),
        tallies=tallies,
        differences=_differences(judged, watched, limit) if tallies else [],
    )


def _watched(books: Books) -> list[Where]:
    kept: Mapping[Where, object] = {"archive": books.archive, "warehouse": books.plan}
    return [side for side, present in kept.items() if present is not None]


def _totals(compared: Sequence[Row], watched: Sequence[Where]) -> dict[str, Any]:
    names = ["published", "from_manifests", "archived", "ingested", "failed", "repeats"]
    absent = set() if "archive" in watched else {"archived"}
    absent |= set() if "warehouse" in watched else {"ingested", "failed", "repeats"}
    return {name: None if name in absent else sum(row[name] for row in compared) for name in names}


def _tallies(side: Where, compared: Sequence[Row]) -> list[Tally]:
    counts: Counter[Kind] = Counter()
    for row in compared:
        counts[row[f"wrong_{side}"]] += row.places
    return [Tally(side, kind, places) for kind, places in counts.items() if kind is not None]


def _differences(judged: DataFrame, watched: Sequence[Where], limit: int) -> list[Difference]:
    found = _ask(judged.sparkSession, "differences", judged=judged)
    rows = found.where(found.side.isin(*watched)).limit(limit).collect()
    return [Difference(r.side, r.kind, r.partition, r.position, r.source, r.id) for r in rows]


def _has(report: Report, kind: Kind) -> bool:
    return any(each.kind == kind for each in report.tallies)


def _unreadable(judged: DataFrame) -> set[str]:
    """The names of objects that cannot be read."""
    return {row.id for row in judged.where("not readable").select("id").collect()}


def _wrong(
    judged: DataFrame, report: Report, unproven: Sequence[tuple[int, str, str]], limit: int
) -> list[Wrong]:
    if not limit or not any(each.where == "warehouse" for each in report.tallies):
        return []
    spark = judged.sparkSession
    ranges = spark.createDataFrame(unproven, "partition int, first string, last string")
    rows = _ask(spark, "wrong", judged=judged, unproven=ranges).limit(limit).collect()
    return [Wrong(row.partition, row.position, tuple(row.kinds), row.rightful) for row in rows]


def _with_losses(report: Report, unreadable: set[str], found: Chain, gone: ByPartition) -> Report:
    """What the manifests say of events that nobody can read any more."""
    gaps = list(found.gaps(gone))
    tallies = [each for each in report.tallies if each.kind != "unreadable"]
    proven = 0
    if unreadable:
        lost = [each for each in found.objects if each.object in unreadable]
        proven = sum(each.rows for each in lost if each.last <= gone.get(each.partition, BEFORE_ALL))
        tallies.append(Tally("archive", "unreadable", sum(each.rows for each in lost)))
    if gaps:
        tallies.append(Tally("archive", "gap", len(gaps)))
    return replace(
        report,
        published=report.published + proven,
        from_manifests=report.from_manifests + proven,
        tallies=tallies,
        differences=[*gaps, *report.differences],
    )
