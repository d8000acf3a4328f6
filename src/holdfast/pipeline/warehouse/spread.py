"""Spreading: the same function over parts of some work, in place or on the executors of a Spark cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from holdfast.model.errors import Unavailable
from holdfast.pipeline.wal.stored import StoredRows
from holdfast.pipeline.warehouse.contract import Load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
SHARE = 4 << 20
"""Bytes of segments that one task reads, about. Less is done in place: to start a task takes longer."""


class Spread(Protocol):
    """Has a function done over parts somewhere; returns the results in their order. `Unavailable` where some
    could not be done; what they wrote then is left for upkeep to remove."""

    def __call__(self, work: Callable[[T], R], parts: Sequence[T]) -> list[R]: ...


def in_place(work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """Here, one part after the other."""
    return [work(part) for part in parts]


def on_executors(spark: SparkSession) -> Spread:
    """A task for each part."""
    context = spark.sparkContext

    def spread(work: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        try:
            return context.parallelize(parts, len(parts)).map(work).collect()
        except Exception as error:
            raise Unavailable(f"Spark could not finish a load: {str(error).partition(chr(10))[0]}") from error

    return spread


def shares(loads: Sequence[Load]) -> list[list[Load]]:
    """Loads in parts for as many tasks: rows that are at hand together, segments by their size."""
    parts: list[list[Load]] = [[load for load in loads if not isinstance(load.rows, StoredRows)]]
    size = 0
    for load in loads:
        if not isinstance(load.rows, StoredRows):
            continue
        for segment in load.rows.segments:
            if size and size + segment.bytes > SHARE:
                parts.append([])
                size = 0
            size += segment.bytes
            taken = parts[-1].pop().rows if parts[-1] and parts[-1][-1].key == load.key else None
            before = taken.segments if isinstance(taken, StoredRows) else ()
            parts[-1].append(load._replace(rows=load.rows.of((*before, segment))))
    return [part for part in parts if part] or [[]]
