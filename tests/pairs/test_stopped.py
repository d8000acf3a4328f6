"""Two verbs on PostgreSQL, one of them stopped between its statements while the other commits."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from stopped import rounds, stopped_arena
from verbs import VERBS

from holdfast_chaos.final_state import ServerUnderTest

_SAMPLE, _FIRST_POINTS, _SEED = 30, 12, 15
_DONE = Path(os.environ.get("HOLDFAST_STOPPED", os.devnull))


@pytest.mark.timeout(600)
async def test_a_verb_stopped_between_its_statements_and_another_one_hurt_nobody(
    server: Callable[[str], ServerUnderTest],
) -> None:
    chance = random.Random(_SEED)
    stopped, found = 0, []
    async with stopped_arena(server("postgres")) as arena:
        for each in chance.sample(list(rounds()), _SAMPLE):
            point = chance.randint(1, _FIRST_POINTS)
            violations = await arena.at(each, point, _SEED)
            stopped += violations is not None
            found += [f"{each}, stopped at point {point}: {violation}" for violation in violations or ()]
    assert not found, "\n".join(found)
    assert stopped > _SAMPLE / 2, "most verbs have that many points"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("first", VERBS)
async def test_a_verb_stopped_at_each_point_beside_every_other(
    server: Callable[[str], ServerUnderTest], first: str
) -> None:
    """`HOLDFAST_STOPPED` names a file that remembers what is done."""
    done, found = _played(), []
    async with stopped_arena(server("postgres")) as arena:
        for each in rounds():
            if each.first != first or str(each) in done:
                continue
            async for point, violations in arena.everywhere(each, _SEED):
                found += [f"{each}, stopped at point {point}: {violation}" for violation in violations]
            if not found:
                _note(str(each))
    assert not found, "\n".join(found)


def _played() -> set[str]:
    return set(_DONE.read_text().splitlines())


def _note(each: str) -> None:
    with _DONE.open("a") as file:
        file.write(f"{each}\n")
