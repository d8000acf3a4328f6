"""Ordered lanes under locks: whoever holds a row, and however that ends, the next of a key gets its turn.

The moments that a race would need are made by hand, with transactions that stay open until the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.contracts import WAITING_ONLY
from holdfast.model.event import Event
from holdfast.model.job import Job
from kit import (
    CHANNEL,
    CONSUMER,
    abandon,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    record,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
CANCEL: dict[str, Any] = {"channel": CHANNEL, "source": "default", "consumer": None, **WAITING_ONLY._asdict()}


@pytest.fixture
async def head(backend: PostgresBackend) -> Job:
    """The leased head of a lane of three, whose others are known to wait behind it."""
    await subscribe(backend, ordered=True)
    await publish(backend, "k1", "k2", "k3", key="k")
    job = await claim_one(backend)
    assert await claim(backend) == []
    return job


async def meanwhile(ending: Awaitable[object], then: Callable[[], object]) -> None:
    """Let one end of a job begin while somebody's transaction is open, then end that transaction."""
    task = asyncio.ensure_future(ending)
    await asyncio.wait([task], timeout=0.3)  # it is through, or it waits for the transaction
    then()
    async with asyncio.timeout(60):
        await task


@pytest.mark.parametrize(("end", "next_one"), [("rollback", "k2"), ("commit", "k3")])
async def test_a_cancel_of_the_next_in_line_while_the_head_ends(
    backend: PostgresBackend, transaction: Sql, head: Job, end: str, next_one: str
) -> None:
    transaction.execute(QUERIES["cancel"], CANCEL | {"id": "k2"})
    await meanwhile(complete(backend, head), getattr(transaction, end))
    assert ids(await claim(backend)) == [next_one]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_requeue_of_the_next_in_line_while_the_head_ends(
    backend: PostgresBackend, transaction: Sql, head: Job, end: str
) -> None:
    waiting = await record(backend, "k2")
    transaction.execute(
        QUERIES["requeue"], {"channel": CHANNEL, "consumer": CONSUMER, "seq": int(waiting.id)}
    )
    await meanwhile(complete(backend, head), getattr(transaction, end))
    assert ids(await claim(backend)) == ["k2"]


@pytest.mark.parametrize("how", ["complete", "bury", "crash"])
async def test_a_lock_on_the_next_in_line_that_leads_to_nothing(
    backend: PostgresBackend, transaction: Sql, head: Job, how: str
) -> None:
    """A session that dies in the middle of a cancel leaves just this: a lock for a moment, and no change."""
    await subscribe(backend, ordered=True, max_abandonments=1)
    waiting = await record(backend, "k2")
    transaction.execute("SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE", [int(waiting.id)])
    ways = {"complete": complete(backend, head), "bury": bury(backend, head), "crash": abandon(backend)}
    mine = ways.pop(how)
    for other in ways.values():
        other.close()
    await meanwhile(mine, transaction.rollback)
    assert ids(await claim(backend)) == ["k2"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_claim_held_open_does_not_lose_its_lane(
    backend: PostgresBackend, transaction: Sql, end: str
) -> None:
    """A worker's claim marks those behind as waiting; the head ends before that claim commits."""
    await subscribe(backend, ordered=True)
    await publish(backend, "k1", "k2", key="k")
    [head] = await claim(backend, 1)
    transaction.execute(
        QUERIES["claim"], {"channel": CHANNEL, "consumer": CONSUMER, "limit": 10, "worker": "slow"}
    )
    await meanwhile(complete(backend, head), getattr(transaction, end))
    assert ids(await claim(backend)) == ["k2"]


async def test_a_late_commit_of_an_earlier_event_takes_its_turn_first(
    backend: PostgresBackend, transaction: Sql
) -> None:
    await subscribe(backend, ordered=True)
    transaction.execute("SELECT holdfast.publish('orders', '1', id => 'late', key => 'k')")
    await publish(backend, "k1", "k2", key="k")
    running = await claim_one(backend)
    assert running.event.id == "k1", "it was committed first"
    transaction.commit()
    assert await complete(backend, running)
    for name in ("late", "k2"):
        job = await claim_one(backend)
        assert (job.event.id, await claim(backend)) == (name, [])
        assert await complete(backend, job)


async def test_one_claim_looks_at_a_part_of_a_long_lane(backend: PostgresBackend, sql: Sql) -> None:
    """What one call marks as held has an end, however many jobs of one key wait. The head of another key
    behind all of them is found by later calls."""
    await subscribe(backend, ordered=True)
    for start in range(0, 20_000, 5000):
        events = [Event(b"{}", f"e-{number}", key="k") for number in range(start, start + 5000)]
        await backend.log.publish(CHANNEL, events)
    await publish(backend, "other", key="l")
    assert ids(await claim(backend, 10)) == ["e-0"]
    held = "SELECT count(*) FROM holdfast.jobs WHERE held"
    assert 0 < next(iter(sql.execute(held)))[0] < 6000
    assert ids(await claim(backend, 10)) == ["other"]
    assert next(iter(sql.execute(held)))[0] == 19_999
    assert await claim(backend, 10) == []
