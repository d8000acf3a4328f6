"""When the ingest flushes, and what goes into the warehouse together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.model.errors import InvalidInput
from holdfast.pipeline.ingest.plan import Flush, check_flush, is_due
from holdfast.pipeline.loader.decisions import groups
from holdfast.pipeline.wal import BatchPart, Segment, WalBatch

FLUSH = Flush(100, 1000, timedelta(seconds=4))
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("rows", "size", "age", "due"),
    [(99, 999, 0, False), (100, 0, 0, True), (1, 1000, 0, True), (1, 1, 3, False), (1, 1, 3.1, True)],
)
def test_rows_bytes_or_age_make_a_flush(rows: int, size: int, age: float, due: bool) -> None:
    """By age at the last look before the oldest event would have waited for too long."""
    assert FLUSH.look == timedelta(seconds=1)
    assert is_due(rows, size, timedelta(seconds=age), FLUSH) == due


@pytest.mark.parametrize("flush", [Flush(rows=0), Flush(bytes=0), Flush(every=timedelta(milliseconds=1))])
def test_what_cannot_be_kept_is_refused(flush: Flush) -> None:
    with pytest.raises(InvalidInput, match="not usable"):
        check_flush(flush)


def batch(number: int, rows: int, size: int = 1) -> WalBatch:
    part = BatchPart(0, "orders", f"{number}", f"{number}", rows=rows)
    return WalBatch((part,), (Segment(f"s{number}", "", rows, size),), NOW)


def test_batches_go_together_as_far_as_the_bounds_allow() -> None:
    batches = [batch(1, 4), batch(2, 4), batch(3, 4), batch(4, 30), batch(5, 1, 90), batch(6, 1, 20)]
    found = [[each.parts[0].first for each in group] for group in groups(batches, 10, 100)]
    assert found == [["1", "2"], ["3"], ["4"], ["5"], ["6"]]
    assert list(groups([])) == []
