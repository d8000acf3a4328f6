"""What a trim costs: it grows with what is removed, not with what is there."""

from __future__ import annotations

from typing import Any

import pytest
from explain import Plan, pooled, watched

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.event import Event
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, publish, subscribe

EVENTS = 20_000
FEW = 350  # pages; the log has more than 400, its index 200, and a look at each event is 20,000


@pytest.fixture
async def filled(backend: PostgresBackend) -> PostgresBackend:
    """A log of 20,000 events without a consumer."""
    for start in range(0, EVENTS, 5000):
        await backend.log.publish(CHANNEL, [Event(b"{}", f"e-{n}") for n in range(start, start + 5000)])
    return backend


async def trim(backend: PostgresBackend, limit: int, before: Any = "infinity") -> tuple[Any, int]:
    """What a trim answers, and how many pages it looked at. It is rolled back."""
    held = await backend.locks.acquire("sweeper", "me", MINUTE)
    assert held is not None
    parameters = {"channel": CHANNEL, "before": before, "limit": limit, "ignore": [], "groups": []}
    parameters |= {"lock": held.name, "token": held.token, "until_epoch": 9, "until_seq": 0}
    async with pooled(backend.url) as connection:
        # Once before: what a new connection reads to plan statements is no cost of a trim.
        async with connection.transaction(force_rollback=True):
            await connection.execute(QUERIES["trim"], parameters)
        async with watched(connection) as plans:
            [row] = await (await connection.execute(QUERIES["trim"], parameters)).fetchall()
    seen: list[Plan] = [plan for plan in plans if "holdfast.trim(" not in plan.text]
    assert seen, "we saw what it did"
    assert all(plan.scanned == set() for plan in seen)
    return row, sum(plan.buffers for plan in seen)


async def test_a_step_is_bounded_by_its_limit(filled: PostgresBackend) -> None:
    row, pages = await trim(filled, 50)
    assert row[:3] == (50, True, None)
    assert pages <= FEW


async def test_nothing_old_enough_costs_nothing(filled: PostgresBackend) -> None:
    row, pages = await trim(filled, 10_000, await filled.now() - MINUTE)
    assert row[:3] == (0, False, None)
    assert pages <= FEW


async def test_a_hold_at_the_beginning_costs_nothing(filled: PostgresBackend) -> None:
    await filled.cursors.attach(CHANNEL, "archiver")
    row, pages = await trim(filled, 10_000)
    assert row[:3] == (0, False, "archiver")
    assert pages <= FEW


async def test_a_backlog_costs_nothing(backend: PostgresBackend) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(b"{}", f"e-{n}") for n in range(EVENTS)])
    row, pages = await trim(backend, 10_000)
    assert row[:3] == (0, False, CONSUMER)
    assert pages <= FEW


async def test_what_dead_letters_keep_is_passed_over_once(backend: PostgresBackend) -> None:
    """The second trim begins where the first one ended, however many the dead are."""
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(2000)))
    for job in await claim(backend, 2000):
        assert await bury(backend, job)
    held = await backend.locks.acquire("another", "me", MINUTE)
    assert held is not None
    assert (await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 5000, held)).removed == 0
    row, pages = await trim(backend, 5000)
    assert row[:3] == (0, False, None)
    assert pages <= FEW
