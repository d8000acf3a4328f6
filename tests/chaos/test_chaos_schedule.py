"""The schedule follows from the seed alone, and every fault and failpoint has its turn."""

from __future__ import annotations

import pytest

from holdfast import failpoints
from holdfast.chaos.roles import ROLES, STORES, Role, points
from holdfast.chaos.schedule import FAULTS, NETWORK, blow, turn

ALL = frozenset(FAULTS)
SPARK = {
    "source.before_plan",
    "driver.after_offsets",
    "driver.after_batch",
    "rebuild.after_stage",
    "repair.before_commit",
}
"""Passed by drivers on Spark only: `make chaos-ingest` kills there."""
DELTA = {
    "delta.after_stage",
    "compact.after_stage",
    "compact.before_commit",
    "compact.after_commit",
    "compact.mid_clean",
    "compact.before_index",
}
"""Passed where the warehouse is Delta: `make chaos-ingest` kills there."""
RARE = {"dead.mid_bootstrap", "dead.mid_recount", "wal.before_lost"}
"""Passed once in the life of a store, by thousands of dead letters, or by an operator who accepts a loss:
other tests break off there."""


def turns(role: Role, seed: str = "7", store: str = "nats", count: int = 200) -> list[object]:
    return [turn(seed, role, store, number, ALL) for number in range(count)]


def test_the_same_seed_deals_the_same_blows() -> None:
    for role in ROLES:
        assert turns(role) == turns(role)
    assert [blow("7", "redis", n, ALL) for n in range(50)] == [blow("7", "redis", n, ALL) for n in range(50)]


def test_another_seed_or_store_deals_others() -> None:
    assert turns(ROLES[0]) != turns(ROLES[0], seed="8")
    assert turns(ROLES[0]) != turns(ROLES[0], store="redis")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_failpoint_of_a_role_has_its_turn(role: Role, store: str) -> None:
    dealt = {turn("1", role, store, number, ALL).point for number in range(20 * len(role.points))}
    assert dealt == {*points(role, store), ""}


def test_every_failpoint_belongs_to_somebody() -> None:
    known = {point for role in ROLES for point in role.points}
    assert known | SPARK | DELTA | RARE == set(failpoints.KNOWN)


def test_every_blow_has_its_turn() -> None:
    dealt = {each.kind for n in range(400) if (each := blow("1", "postgres", n, ALL)) is not None}
    assert dealt == {"server", "power", "disk", "s3", *NETWORK}


def test_nothing_is_dealt_that_was_not_asked_for() -> None:
    kinds = {turn("1", ROLES[0], "redis", n, frozenset({"pause"})).kind for n in range(200)}
    assert kinds == {"pause", "spared"}
    assert blow("1", "redis", 0, frozenset({"kill", "pause", "clock", "noise"})) is None
