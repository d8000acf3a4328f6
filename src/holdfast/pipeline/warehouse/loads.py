"""Loads: the rows of several as one table, what became of them, and their division among tasks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Unavailable
from holdfast.pipeline.wal.segments import SCHEMA, StoredRows
from holdfast.pipeline.warehouse.contract import Load, LoadOutcome
from holdfast.pipeline.warehouse.schemas import ChannelSchemas
from holdfast.pipeline.warehouse.tables import Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")
TASK_BYTES = 4 << 20
"""Bytes of segments that one task reads, about. Less is done in place: to start a task takes longer."""
RepeatedRow = tuple[int, str, bool]
"""A row that does not go in: of which load, its name, and whether it has the content that is there."""


def incoming_rows(loads: Sequence[Load]) -> pa.Table:
    """The rows of all loads in order: numbered by `row` and `load`, with the `batch` of each."""
    tables = [each.table for each in loads]
    rows = pa.concat_tables([SCHEMA.empty_table(), *tables])
    counts = [each.num_rows for each in tables]
    numbers = pa.array([n for n, count in enumerate(counts) for _ in range(count)], pa.int32())
    batches = pa.array([each.batch for each in loads], pa.string())
    extra = {
        "row": pa.array(range(len(numbers)), pa.int64()),
        "load": numbers,
        "batch": batches.take(numbers),
    }
    for name, column in extra.items():
        rows = rows.append_column(name, column)
    return rows


def by_table(tables: Tables | ChannelSchemas, loads: Sequence[Load]) -> Iterator[tuple[Table, list[Load]]]:
    """Each table once, in the order of their names, with the loads that have channels of it: their rows of
    these channels, or none."""
    channels: dict[Table, set[str]] = defaultdict(set)
    for load in loads:
        for channel in load.channels:
            channels[tables.of(channel)].add(channel)
    for table in sorted(channels, key=lambda each: each.name):
        its = channels[table]
        yield table, [_only(load, its) for load in loads if its.intersection(load.channels)]


def _only(load: Load, channels: set[str]) -> Load:
    if channels.issuperset(load.channels):
        return load
    if isinstance(load.rows, StoredRows):
        return load._replace(rows=load.rows.only(frozenset(channels)))
    wanted = pc.is_in(load.rows["channel"], pa.array(sorted(channels)))
    return load._replace(rows=load.rows.filter(wanted))


def outcomes(loads: Sequence[Load], repeated: Iterable[RepeatedRow]) -> list[LoadOutcome]:
    """The outcomes of loads of which all rows but the repeated ones went in."""
    duplicates, conflicts = [0] * len(loads), defaultdict(list)
    for load, name, same in repeated:
        if same:
            duplicates[load] += 1
        else:
            conflicts[load].append(name)
    return [
        LoadOutcome(each.table.num_rows - same - len(conflicts[n]), same, tuple(conflicts[n]))
        for n, (each, same) in enumerate(zip(loads, duplicates, strict=True))
    ]


def total(parts: Iterable[LoadOutcome]) -> LoadOutcome:
    """The outcome of a key from those in its tables. Refused in one of them, it is refused: what is in the
    others is found there when the rest is tried again."""
    found = LoadOutcome(0, 0, ())
    for each in parts:
        found = LoadOutcome(
            found.inserted + each.inserted,
            found.duplicates + each.duplicates,
            found.conflicts + each.conflicts,
            found.refused or each.refused,
        )
    return found


class TaskRunner(Protocol):
    """Runs a function over parts somewhere; returns the results in their order. Raises `Unavailable` where
    some could not be done; what they wrote then is left for upkeep to remove."""

    def __call__(self, function: Callable[[T], R], parts: Sequence[T]) -> list[R]: ...


def run_in_place(function: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """Run it here, one part after the other."""
    return [function(part) for part in parts]


def run_on_executors(spark: SparkSession) -> TaskRunner:
    """A runner with a Spark task for each part."""
    context = spark.sparkContext

    def run(function: Callable[[Any], Any], parts: Sequence[Any]) -> list[Any]:
        try:
            return context.parallelize(parts, len(parts)).map(function).collect()
        except Exception as error:
            raise Unavailable(f"Spark could not finish a load: {str(error).partition(chr(10))[0]}") from error

    return run


def task_shares(loads: Sequence[Load]) -> list[list[Load]]:
    """Loads in parts for as many tasks: rows that are at hand together, segments by their size."""
    parts: list[list[Load]] = [[load for load in loads if not isinstance(load.rows, StoredRows)]]
    size = 0
    for load in loads:
        if not isinstance(load.rows, StoredRows):
            continue
        for segment in load.rows.segments:
            if size and size + segment.bytes > TASK_BYTES:
                parts.append([])
                size = 0
            size += segment.bytes
            taken = parts[-1].pop().rows if parts[-1] and parts[-1][-1].key == load.key else None
            before = taken.segments if isinstance(taken, StoredRows) else ()
            parts[-1].append(load._replace(rows=load.rows.of((*before, segment))))
    return [part for part in parts if part] or [[]]
