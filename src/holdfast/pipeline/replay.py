"""Replay: archived events back into a channel, with their original ids and in their order.

In the channel that they came from, events that the store still knows are duplicates, and nothing happens.
Events older than the dedupe window are new ones to the store: that needs `--again`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from holdfast.bus.client import Bus
from holdfast.model.duration import format_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event, Receipt
from holdfast.model.names import check_name
from holdfast.pipeline.archive.lines import exact_data, load
from holdfast.pipeline.archive.manifests import intact_catalog
from holdfast.pipeline.stores import open_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

_CHUNK = 1000


@dataclass(slots=True)
class Replayed:
    """What a replay found and did."""

    matched: int
    channels: dict[str, int] = field(default_factory=dict)
    published: int = 0
    duplicates: int = 0


def select(spark: SparkSession, source: str, where: str) -> DataFrame:
    """The archived events that a condition in Spark's SQL selects."""
    events = load(spark, source, intact_catalog(open_store(source)).objects)
    try:
        return events.where(where)
    except (AnalysisException, ParseException) as error:
        columns = ", ".join(events.columns)
        reason = str(error).strip().partition("\n")[0]
        raise InvalidInput(f"--where {where!r}: {reason} The columns are {columns}") from None


def count(events: DataFrame) -> Replayed:
    """How many there are, by channel."""
    rows = events.groupBy("channel").count().orderBy("channel").collect()
    channels = {row["channel"]: row["count"] for row in rows}
    return Replayed(sum(channels.values()), channels)


def refuse_forgotten(events: DataFrame, to: str, window: timedelta) -> None:
    """Raise `InvalidInput` for events of the same channel that the store may have forgotten."""
    old = events.where((F.col("channel") == to) & (F.col("timestamp") < F.lit(datetime.now(UTC) - window)))
    if forgotten := old.count():
        raise InvalidInput(
            f"{forgotten} of these events came from {to!r} longer than the dedupe window "
            f"({format_duration(window)}) ago: the store may not know them any more and would take "
            "them for new ones; add --again if that is what you want, or narrow --where"
        )


async def publish(bus: Bus, events: DataFrame, to: str, result: Replayed) -> Replayed:
    """Publish them in order and add the counts to `result`. A repeat changes nothing."""
    check_name(to)
    ordered = events.orderBy("channel", "partition", "position").toLocalIterator(prefetchPartitions=True)
    for partition, rows in _chunks(ordered, to):
        receipts = await _publish(bus, to, partition, [_event(row) for row in rows])
        result.duplicates += sum(receipt.duplicate for receipt in receipts)
        result.published += sum(not receipt.duplicate for receipt in receipts)
    return result


async def _publish(bus: Bus, to: str, partition: int | None, events: Sequence[Event]) -> list[Receipt]:
    if partition is None:
        return await bus.publish_many(to, events)
    if partition >= len(bus.partitions.all):
        raise InvalidInput(
            f"events of {to!r} were archived from partition {partition}, and --url lists "
            f"{len(bus.partitions.all)} stores; list all of them in their order"
        )
    # Where an event is from, its id is known: there, and only there, it can be found to be a duplicate.
    store = await bus.partitions.ready(bus.partitions.all[partition])
    return await store.backend.log.publish(to, events)


def _chunks(rows: Iterator[Row], to: str) -> Iterator[tuple[int | None, list[Row]]]:
    """Runs of rows for one store, or for whichever the bus chooses."""
    while chunk := list(islice(rows, _CHUNK)):
        homes = [row["partition"] if row["channel"] == to else None for row in chunk]
        for home in dict.fromkeys(homes):
            yield home, [row for row, its in zip(chunk, homes, strict=True) if its == home]


def _event(row: Row) -> Event:
    return Event(
        exact_data(row["data"], row["data_base64"]),
        row["message_id"],
        row["source"],
        row["type"],
        row["key"],
        row["timestamp"].astimezone(UTC),
        row["headers"] or None,
    )
