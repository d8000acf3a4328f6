"""Rows of a batch, by what became of them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.wal.log import Wal


def names(rows: pa.Table) -> pa.ChunkedArray:
    """The name of each row: its place in the log, which names its failure, too (`Failure.name`)."""
    partition = rows["partition"].cast(pa.string())
    return pc.binary_join_element_wise(rows["channel"], partition, rows["position"], "@")


def healthy(wal: Wal, batch: str, rows: pa.Table) -> pa.Table:
    """The rows that have not failed."""
    failed = wal.left_out(batch)
    return rows.filter(pc.invert(pc.is_in(names(rows), pa.array(failed)))) if failed else rows


def named(rows: pa.Table, wanted: Iterable[str]) -> pa.Table:
    """The rows of these names."""
    return rows.filter(pc.is_in(names(rows), pa.array(sorted(wanted), pa.string())))


def without(rows: pa.Table, positions: set[str]) -> pa.Table:
    """All other rows."""
    return rows.filter(pc.invert(pc.is_in(rows["position"], pa.array(sorted(positions)))))


def only(rows: pa.Table, positions: set[str]) -> pa.Table:
    """The rows at these positions."""
    return rows.filter(pc.is_in(rows["position"], pa.array(sorted(positions))))
