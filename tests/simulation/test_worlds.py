"""The worlds hold: no seed violates an invariant, and every seed can be told again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast_chaos.simulation import WORLDS, SeedsOutcome, simulate, trace

SHORT = {"jobs": 200, "retention": 200, "wal": 25}
FULL = {"jobs": 10_000, "retention": 10_000, "wal": 1_000}


@pytest.mark.parametrize("world", WORLDS)
def test_no_seed_violates_an_invariant(world: str) -> None:
    _check(simulate(range(SHORT[world]), [world]), world)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world", WORLDS)
def test_no_seed_of_thousands_violates_an_invariant(world: str) -> None:
    _check(simulate(range(1_000_000, 1_000_000 + FULL[world]), [world]), world)


def _check(outcome: SeedsOutcome, world: str) -> None:
    assert outcome.found is None, outcome.found
    assert outcome.steps >= 200 * outcome.seeds
    kinds, happened = outcome.kinds[world], outcome.happenings[world]
    # A world in which nothing goes wrong proves nothing.
    assert kinds["crash"] > outcome.seeds
    assert kinds["passes"] > outcome.seeds
    for fault in ("answer lost", "not arrived", *REFUSALS[world]):
        assert happened[fault], fault


REFUSALS = {
    "jobs": ("refused by token", "refused by the second look", "IdConflict"),
    "retention": ("refused by the lock's token", "cursor refused", "Overloaded"),
    "wal": ("put refused", "cursor refused", "warehouse away", "held by another", "expired", "quarantined"),
}


TOLD = """
from holdfast_chaos.simulation import WORLDS, trace
print(*[line for world in WORLDS for line in trace(world, 7)], sep="\\n")
"""


def test_a_seed_tells_the_same_story_in_another_process() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [line for world in WORLDS for line in trace(world, 7)]
    assert all(trace(world, 7) != trace(world, 8) for world in WORLDS)
