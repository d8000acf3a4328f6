"""Claims wait for nobody who waits himself: what holds their lock gives way, and what we hung up on ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend, session
from holdfast.model.errors import Unavailable
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, MINUTE, claim, ids, publish, record, states, step, subscribe, until

Sql = psycopg.Connection[tuple[Any, ...]]
OTHER = "others"
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


async def test_a_burial_that_waits_for_a_publisher_holds_no_other_channel_up(
    backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    """Jobs of two consumers are due at once. A transaction that publishes to the bounded channel of the first
    stays open: nothing of that one is buried, but the second goes on."""
    await subscribe(backend, max_depth=100, expires_after="10m")
    await subscribe(backend, channel=OTHER, expires_after="10m")
    await publish(backend, "a")
    await publish(backend, "b", channel=OTHER)
    await backend.advance(11 * MINUTE)
    transaction.execute("SELECT holdfast.publish(%s, '{}')", [CHANNEL])
    burial = asyncio.create_task(step(backend))
    await waiting(sql)
    await publish(backend, "c", channel=OTHER)
    assert ids(await claim(backend, channel=OTHER)) == ["c"]
    assert (await burial).buried == 1
    assert await states(backend, channel=OTHER) == {State.DEAD: 1, State.LEASED: 1}
    transaction.rollback()
    assert (await step(backend)).buried == 1
    assert await states(backend) == {State.DEAD: 1}


@pytest.mark.parametrize("verb", ["cancel", "cancel_waiting", "requeue"])
async def test_an_operator_who_waits_for_a_publisher_holds_no_claim_up(
    backend: PostgresBackend, transaction: Sql, sql: Sql, verb: str
) -> None:
    """A cancel and a requeue of a dead job change the depth of a bounded consumer, which an open transaction
    has locked. They have their turn when that ends, and claims have theirs meanwhile."""
    await subscribe(backend, max_depth=100, expires_after="10m")
    await publish(backend, "a")
    if verb == "requeue":
        await backend.advance(11 * MINUTE)
        await step(backend)
    transaction.execute("SELECT holdfast.publish(%s, '{}')", [CHANNEL])
    job = await record(backend, "a")
    changes: dict[str, Callable[[], Coroutine[Any, Any, int]]] = {
        "cancel": lambda: backend.leases.cancel(CHANNEL, "default", "a", CONSUMER),
        "cancel_waiting": lambda: backend.leases.cancel_waiting(CHANNEL, CONSUMER, 10),
        "requeue": lambda: backend.leases.requeue(CHANNEL, CONSUMER, job.id),
    }
    change = asyncio.create_task(changes[verb]())
    await waiting(sql)
    async with asyncio.timeout(20):
        jobs = await claim(backend)
    assert not change.done()
    transaction.rollback()
    changed = await change
    assert (changed, len(jobs)) in [(1, 0), (0, 1)]


@pytest.mark.concurrency
async def test_a_claim_that_was_hung_up_on_leases_nothing_to_nobody(
    database: str, transaction: Sql, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim waits for its turn longer than the client waits for an answer. The server notices that nobody
    is there, so that the claim is over before its turn comes."""
    monkeypatch.setattr(session, "PATIENCE", 1.0)
    backend = PostgresBackend(database)
    await backend.open()
    await subscribe(backend, lease=timedelta(hours=1))
    await publish(backend, "a")
    transaction.execute("SELECT holdfast.lock_frontier(id) FROM holdfast.consumers")
    with pytest.raises(Unavailable):
        await claim(backend)

    async def over() -> bool:
        return sql.execute(WAITING).fetchone() == (0,)

    await until(over, 20)
    transaction.rollback()
    assert ids(await claim(backend)) == ["a"]
    await backend.close()
