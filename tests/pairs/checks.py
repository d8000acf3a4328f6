"""The tests of one store, which its own file names: files are what processes share the tests by."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from run import Memory, Result, code, play
from selection import everything, selected

from holdfast_chaos.final_state import ServerUnderTest

SEED = 15
_PARTS, _TURNS = 12, 2


def some(name: str) -> Callable[..., object]:
    """A test of the part of the selection that is for one store, in slices."""

    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("part", range(_PARTS))
    async def test_verbs_at_once_leave_every_invariant_true(
        server: Callable[[str], ServerUnderTest], part: int
    ) -> None:
        rounds = [(each, SEED) for each in selected(SEED)[name][part::_PARTS]]
        found = [
            f"{each}: {violation.invariant}: {violation.message}"
            async for each, _, violations in play(name, server(name), rounds, turns=_TURNS)
            for violation in violations
        ]
        assert not found, "\n".join(found)

    return test_verbs_at_once_leave_every_invariant_true


def all_of(name: str) -> Callable[..., object]:
    """A test of every pair on every kind of consumer. `HOLDFAST_PAIRS` names a file that remembers what is
    done."""

    @pytest.mark.slow
    @pytest.mark.timeout(0)
    @pytest.mark.parametrize("first", sorted({each.first for each in everything(name)}))
    async def test_every_pair_on_every_kind_of_consumer(
        server: Callable[[str], ServerUnderTest], first: str
    ) -> None:
        path = os.environ.get("HOLDFAST_PAIRS")
        memory, version = Memory(Path(path) if path else None), code(name)
        results = {
            each: Result(version, name, each.first, each.second, str(each.kind), SEED)
            for each in everything(name)
            if each.first == first
        }
        left = [(each, SEED) for each, result in results.items() if result.key not in memory.results]
        async for each, _, violations in play(name, server(name), left):
            results[each].violations = [f"{each.invariant}: {each.message}" for each in violations]
            memory.add(results[each])
        known = (memory.results[result.key] for result in results.values())
        found = [f"{each}: {line}" for each in known for line in each.violations]
        assert not found, "\n".join(found)

    return test_every_pair_on_every_kind_of_consumer
