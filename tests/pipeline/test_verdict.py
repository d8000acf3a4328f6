"""The verdict itself: a check that finds nothing wrong would be worth nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast_chaos.checks.pipeline import IngestState, Published, StoredRow, check_ingest

HISTORY = {"p1": Published("a", True), "p2": Published("b", False), "p3": Published("c", True)}
BATCH = "orders@0@p1@p3"
SOUND = IngestState(
    cursor="p3",
    in_wal={"p1", "p2", "p3"},
    open_batches=[],
    failed=Counter(["p2"]),
    rows=[StoredRow("a", "p1", BATCH), StoredRow("c", "p3", BATCH)],
    ledger={BATCH: 2},
    mirrored=Counter(["b"]),
)
WHOLE_ROWS = list(SOUND.rows)


def broken(*, drained: bool = True, **changes: Any) -> set[str]:
    return {each.invariant for each in check_ingest(HISTORY, SOUND._replace(**changes), drained=drained)}


def test_what_is_sound_is_acquitted() -> None:
    assert broken() == set()


def test_what_is_on_its_way_is_no_violation_before_the_end() -> None:
    fresh = IngestState("p1", {"p1"}, [BATCH], Counter(), [], {}, Counter())
    assert check_ingest(HISTORY, fresh, drained=False) == []
    assert {each.invariant for each in check_ingest(HISTORY, fresh, drained=True)} == {"I10", "I15"}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"in_wal": set(), "rows": WHOLE_ROWS[:1], "ledger": {BATCH: 1}}, {"I9", "I10"}),
        ({"rows": WHOLE_ROWS[:1]}, {"I10", "I11"}),
        ({"rows": [*WHOLE_ROWS, WHOLE_ROWS[0]], "ledger": {BATCH: 3}}, {"I10"}),
        ({"rows": [*WHOLE_ROWS, StoredRow("b", "p2", BATCH)], "ledger": {BATCH: 3}}, {"I10"}),
        ({"ledger": {}}, {"I11"}),
        ({"failed": Counter()}, {"I10"}),
        ({"mirrored": Counter()}, {"I10"}),
        ({"open_batches": [BATCH]}, {"I15"}),
        ({"cursor": "p2"}, {"I15"}),
    ],
    ids=["passed over", "half", "doubled", "bad", "no entry", "unfailed", "untold", "open", "behind"],
)
def test_every_violation_is_found(changes: dict[str, Any], found: set[str]) -> None:
    assert broken(**changes) == found
