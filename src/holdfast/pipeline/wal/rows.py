"""Rows of a batch, by what became of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.pipeline.wal.log import Wal


def healthy(wal: Wal, name: str, rows: pa.Table) -> pa.Table:
    """The rows that have not failed."""
    failed = wal.failed_positions(name)
    return without(rows, failed) if failed else rows


def without(rows: pa.Table, positions: set[str]) -> pa.Table:
    """All other rows."""
    return rows.filter(pc.invert(pc.is_in(rows["position"], pa.array(sorted(positions)))))


def only(rows: pa.Table, positions: set[str]) -> pa.Table:
    """The rows at these positions."""
    return rows.filter(pc.is_in(rows["position"], pa.array(sorted(positions))))
