"""Positive controls: a world with one guard left out is found out, and the history that shows it is short."""

from __future__ import annotations

import pytest

from holdfast.model.errors import InvalidInput
from holdfast_chaos.simulation import defects, simulate

WITHIN = 20
"""Seeds."""

# Where a defect breaks several things, chance decides which one shows first.
FOUND = {
    "unfenced": "I5",
    "costly-expiry": "I4",
    "early-verdict": "I6",
    "one-look": "I3 I5 I6",
    "forgotten-ids": "I2",
    "overtaking": "I13",
    "miscounting": "I3",
    "queued-is-stuck": "I3 I4 I6",
    "fastest-reader": "I7",
    "unfinished-is-old": "I7",
    "dead-is-done": "I7",
    "tokenless-lock": "I5",
    "cursor-before-sink": "I9",
    "cursor-before-pending": "I9",
    "confirm-before-commit": "I10",
    "silent-expiry": "I10",
    "torn-load": "I11",
    "swallowed-rivals": "I10",
    "clean-unconfirmed": "I9",
    "counted-ids": "I10",
}


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_is_found(name: str) -> None:
    found = simulate(range(WITHIN), defect=name).found
    assert found is not None
    assert found.invariant in FOUND[name].split()
    assert found.world == defects()[name].world
    assert any(f"!! {found.invariant}" in line for line in found.history)


def test_every_defect_has_its_control() -> None:
    assert set(defects()) == set(FOUND)
    assert all(defect.what for defect in defects().values())


def test_the_smallest_history_leaves_out_what_does_not_matter() -> None:
    found = simulate(range(WITHIN), defect="unfenced").found
    assert found is not None
    assert len(found.history) < found.steps / 5
    assert simulate([found.seed], defect="unfenced").found == found


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the defects are unfenced"):
        simulate([1], defect="unheard-of")
    with pytest.raises(InvalidInput, match="the worlds are jobs"):
        simulate([1], ["nowhere"])
