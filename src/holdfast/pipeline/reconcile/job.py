"""Reconcile: a Spark job that shows published = archived = ingested + failed, for a channel or a day of it.

Published is what the log holds; for what retention has trimmed it is what the archive's manifests prove. The
comparison is by place in the log and by event, so that losses, duplicates and unknown events are named,
not only counted: equal sums prove nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.model.sql_files import load_queries
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.reconcile.inputs import (
    AFTER_ALL,
    BEFORE_ALL,
    Bounds,
    ByPartition,
    Chain,
    Inputs,
    log_ends,
    read_bounds,
    read_chain,
    read_inputs,
    trim_marks,
)
from holdfast.pipeline.reconcile.report import (
    Difference,
    DifferenceKind,
    ReconcileReport,
    Side,
    Tally,
    WrongPosition,
    store_report,
)
from holdfast.pipeline.session import explain_failure
from holdfast.pipeline.warehouse import Warehouse, open_warehouse

LIMIT = 100
QUERIES = load_queries(__package__, "reconcile.sql")
_LIMITS = (
    "partition int, until string, ending string, gone string, floor string, archived string, ingested string"
)
_PENDING = "partition int, channel string, first string, last string"


def reconcile(
    spark: SparkSession, inputs: Inputs, day: date | None = None, limit: int = LIMIT
) -> ReconcileReport:
    """Compare, and leave the report in the store for the server to show.

    `limit` bounds the differences that are named; they are counted in any case.
    """
    return _reconcile(spark, inputs, day, limit, 0)[0]


def find_wrong(
    spark: SparkSession, inputs: Inputs, limit: int
) -> tuple[ReconcileReport, list[WrongPosition]]:
    """Reconcile, and find the first positions whose rows in the warehouse are not what they should be."""
    return _reconcile(spark, inputs, None, LIMIT, limit)


def _reconcile(
    spark: SparkSession, inputs: Inputs, day: date | None, limit: int, wrong: int
) -> tuple[ReconcileReport, list[WrongPosition]]:
    plan = inputs.plan
    warehouse = None if plan is None else open_warehouse(plan.warehouse, plan.tables)
    try:
        with Connection(inputs.urls) as connection:
            report, found = _compare(spark, connection, inputs, warehouse, day, limit, wrong)
            store_report(connection, inputs.namespace, report)
            return report, found
    finally:
        if warehouse is not None:
            warehouse.close()


def _compare(
    spark: SparkSession,
    connection: Connection,
    inputs: Inputs,
    warehouse: Warehouse | None,
    day: date | None,
    limit: int,
    wrong: int,
) -> tuple[ReconcileReport, list[WrongPosition]]:
    bounds, chain = read_bounds(connection, inputs), read_chain(inputs)
    with read_inputs(spark, inputs, chain.objects, warehouse, day) as records:
        try:
            places = _query(spark, "places", records=records)
            places = places.localCheckpoint()  # read now, and once: what is trimmed from here on was seen
            gone, ending = trim_marks(connection, inputs.channel), log_ends(connection, inputs.channel)
            limits = _limits(spark, bounds, ending, gone, chain.floors(gone))
            if day is not None and warehouse is not None:
                places = _count_elsewhere(places, limits, warehouse, inputs.channel)
            pending = spark.createDataFrame([part[:4] for part in bounds.pending], _PENDING)
            states = _query(spark, "states", places=places, limits=limits)
            checked = _query(spark, "checked", states=states, pending=pending)
            report = _report(checked, inputs, day, limit)
            unreadable: set[str] = set()
            if any(each.kind == "unreadable" for each in report.tallies):
                unreadable = {row.id for row in checked.where("not readable").select("id").collect()}
            report = _with_losses(report, unreadable, chain, gone)
            beyond = [(partition, end + " ", AFTER_ALL) for partition, end in ending.items()]
            return report, _wrong(checked, report, beyond + chain.unproven(gone, unreadable), wrong)
        except Exception as error:
            raise explain_failure(error) from error


def _query(spark: SparkSession, name: str, **frames: DataFrame) -> DataFrame:
    return spark.sql(QUERIES[name].rstrip(";"), None, **frames)


def _limits(
    spark: SparkSession, bounds: Bounds, ending: ByPartition, gone: ByPartition, floors: ByPartition
) -> DataFrame:
    columns = (bounds.until, ending, gone, floors, bounds.archived, bounds.ingested)
    rows = [(partition, *(each.get(partition, BEFORE_ALL) for each in columns)) for partition in bounds.until]
    return spark.createDataFrame(rows, _LIMITS)


def _count_elsewhere(places: DataFrame, limits: DataFrame, warehouse: Warehouse, channel: str) -> DataFrame:
    """Count events of a day that the warehouse has under another day: published again, with another time."""
    missing = _query(places.sparkSession, "unknown", places=places, limits=limits).collect()
    held = warehouse.holds(channel, [row.transaction_id for row in missing])
    elsewhere = F.col("transaction_id").isin(*held)
    return places.withColumn("in_warehouse", F.when(elsewhere, 1).otherwise(F.col("in_warehouse")))


def _report(checked: DataFrame, inputs: Inputs, day: date | None, limit: int) -> ReconcileReport:
    sums = _query(checked.sparkSession, "sums", checked=checked).collect()
    compared = [row for row in sums if row.compared]
    watched = _watched(inputs)
    tallies = [each for side in watched for each in _tallies(side, compared)]
    return ReconcileReport(
        inputs.channel,
        day,
        **_totals(compared, watched),
        not_compared=sum(row.places for row in sums if not row.compared),
        tallies=tallies,
        differences=_differences(checked, watched, limit) if tallies else [],
    )


def _watched(inputs: Inputs) -> list[Side]:
    kept: Mapping[Side, object] = {"archive": inputs.archive, "warehouse": inputs.plan}
    return [side for side, present in kept.items() if present is not None]


def _totals(compared: Sequence[Row], watched: Sequence[Side]) -> dict[str, Any]:
    names = ["published", "from_manifests", "archived", "ingested", "failed", "repeats"]
    absent = set() if "archive" in watched else {"archived"}
    absent |= set() if "warehouse" in watched else {"ingested", "failed", "repeats"}
    return {name: None if name in absent else sum(row[name] for row in compared) for name in names}


def _tallies(side: Side, compared: Sequence[Row]) -> list[Tally]:
    counts: Counter[DifferenceKind] = Counter()
    for row in compared:
        counts[row[f"wrong_{side}"]] += row.places
    return [Tally(side, kind, places) for kind, places in counts.items() if kind is not None]


def _differences(checked: DataFrame, watched: Sequence[Side], limit: int) -> list[Difference]:
    found = _query(checked.sparkSession, "differences", checked=checked)
    rows = found.where(found.side.isin(*watched)).limit(limit).collect()
    return [Difference(r.side, r.kind, r.partition, r.position, r.source, r.id) for r in rows]


def _wrong(
    checked: DataFrame, report: ReconcileReport, unproven: Sequence[tuple[int, str, str]], limit: int
) -> list[WrongPosition]:
    if not limit or not any(each.where == "warehouse" for each in report.tallies):
        return []
    spark = checked.sparkSession
    ranges = spark.createDataFrame(unproven, "partition int, first string, last string")
    rows = _query(spark, "wrong", checked=checked, unproven=ranges).limit(limit).collect()
    return [WrongPosition(row.partition, row.position, tuple(row.kinds), row.expected) for row in rows]


def _with_losses(
    report: ReconcileReport, unreadable: set[str], chain: Chain, gone: ByPartition
) -> ReconcileReport:
    """What the manifests say of events that nobody can read any more."""
    gaps = list(chain.gaps(gone))
    tallies = [each for each in report.tallies if each.kind != "unreadable"]
    proven = 0
    if unreadable:
        lost = [each for each in chain.objects if each.object in unreadable]
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
