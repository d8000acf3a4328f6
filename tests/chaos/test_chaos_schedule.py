"""The schedule follows from the seed alone, and every fault and failpoint has its turn."""

from __future__ import annotations

import pytest

from holdfast import failpoints
from holdfast_chaos.roles import ROLES, STORES, Role, points
from holdfast_chaos.schedule import FAULTS, NETWORK, process_fault, server_fault

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
RARE = {
    "dead.mid_recount",
    "wal.before_lost",
    "schedules.after_publish",
    "transaction.before_completion",
    "transaction.before_commit",
    "transaction.after_commit",
}
"""Passed by thousands of dead letters, by an operator who accepts a loss, by schedules, or by handlers with
transactions of their own, which no role has: other tests break off there."""


def faults(role: Role, seed: str = "7", store: str = "nats", count: int = 200) -> list[object]:
    return [process_fault(seed, role, store, number, ALL) for number in range(count)]


def test_the_same_seed_deals_the_same_faults() -> None:
    for role in ROLES:
        assert faults(role) == faults(role)
    once, again = ([server_fault("7", "redis", n, ALL) for n in range(50)] for _ in range(2))
    assert once == again


def test_another_seed_or_store_deals_others() -> None:
    assert faults(ROLES[0]) != faults(ROLES[0], seed="8")
    assert faults(ROLES[0]) != faults(ROLES[0], store="redis")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_failpoint_of_a_role_has_its_turn(role: Role, store: str) -> None:
    dealt = {process_fault("1", role, store, number, ALL).point for number in range(20 * len(role.points))}
    assert dealt == {*points(role, store), ""}


def test_every_failpoint_belongs_to_somebody() -> None:
    known = {point for role in ROLES for point in role.points}
    assert known | SPARK | DELTA | RARE == set(failpoints.KNOWN)


def test_every_server_fault_has_its_turn() -> None:
    dealt = {each.kind for n in range(400) if (each := server_fault("1", "postgres", n, ALL)) is not None}
    assert dealt == {"server", "power", "disk", "s3", *NETWORK}


def test_nothing_is_dealt_that_was_not_asked_for() -> None:
    kinds = {process_fault("1", ROLES[0], "redis", n, frozenset({"pause"})).kind for n in range(200)}
    assert kinds == {"pause", "spared"}
    assert server_fault("1", "redis", 0, frozenset({"kill", "pause", "clock", "noise"})) is None
