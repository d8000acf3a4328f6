"""Incoming rows: those of several loads as one table, and what became of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.wal.segments import SCHEMA
from holdfast.pipeline.wal.stored import StoredRows
from holdfast.pipeline.warehouse.contract import Load, Outcome
from holdfast.pipeline.warehouse.schemas import Schemas
from holdfast.pipeline.warehouse.tables import Table, Tables

Rival = tuple[int, str, bool]
"""A row that does not go in: of which load, its name, and whether it has the content that is there."""


def incoming(loads: Sequence[Load]) -> pa.Table:
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


def by_table(tables: Tables | Schemas, loads: Sequence[Load]) -> Iterator[tuple[Table, list[Load]]]:
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


def outcomes(loads: Sequence[Load], rivals: Iterable[Rival]) -> list[Outcome]:
    """Of loads of which all rows but the rivals went in."""
    duplicates, conflicts = [0] * len(loads), defaultdict(list)
    for load, name, same in rivals:
        if same:
            duplicates[load] += 1
        else:
            conflicts[load].append(name)
    return [
        Outcome(each.table.num_rows - same - len(conflicts[n]), same, tuple(conflicts[n]))
        for n, (each, same) in enumerate(zip(loads, duplicates, strict=True))
    ]


def total(parts: Iterable[Outcome]) -> Outcome:
    """The outcome of a key from those in its tables. Refused in one of them, it is refused: what is in the
    others is found there when the rest is tried again."""
    found = Outcome(0, 0, ())
    for each in parts:
        found = Outcome(
            found.inserted + each.inserted,
            found.duplicates + each.duplicates,
            found.conflicts + each.conflicts,
            found.refused or each.refused,
        )
    return found
