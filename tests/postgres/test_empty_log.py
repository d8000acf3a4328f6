"""Emptying a consumer whose backlog is the log: what it leaves in history, and what it does beside others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

import stops
from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    claim,
    complete,
    ids,
    publish,
    record,
    state,
    states,
    step,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
HISTORY = """
    SELECT outcome, token, n, members[1] = first AND members[n] = last, members = ARRAY(
        SELECT unnest(members) ORDER BY 1), last - first < 1 << 30
    FROM holdfast.history ORDER BY first
"""


async def empty(backend: PostgresBackend, limit: int = 10_000, channel: str = CHANNEL) -> int:
    done = 0
    while cancelled := await backend.leases.cancel_waiting(channel, CONSUMER, limit):
        done += cancelled
    return done


@pytest.fixture
async def stoppable(database: str, backend: PostgresBackend, sql: Sql) -> AsyncIterator[PostgresBackend]:
    """Another backend on the same database, whose one session stops where it is told to."""
    stops.install(sql)
    opened = PostgresBackend(database, connections=1)
    await opened.open()
    yield opened
    await opened.close()


async def test_many_events_become_few_rows_of_history_and_no_jobs(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event(n, f"e-{n}") for n in range(1000)])
    for number in range(5):
        await publish(backend, f"single-{number}")
    assert await empty(backend) == 1005
    rows = sql.execute(HISTORY).fetchall()
    assert {(*row[:2], *row[3:]) for row in rows} == {("cancelled", 0, True, True, True)}
    assert sorted(row[2] for row in rows) == [109, *[128] * 7]
    assert sql.execute("SELECT count(*) FROM holdfast.jobs").fetchone() == (0,)
    kept = await record(backend, "e-500")
    assert (kept.state, kept.attempts, kept.token) == (State.CANCELLED, 0, 0)
    assert kept.created_at <= (kept.ended_at or kept.created_at)


async def test_numbers_that_lie_far_apart_are_in_rows_of_their_own(
    backend: PostgresBackend, sql: Sql
) -> None:
    await subscribe(backend)
    for number in range(3):
        await publish(backend, f"e-{number}")
        sql.execute("SELECT setval('holdfast.event_seq', nextval('holdfast.event_seq') + (1 << 30))")
    assert await empty(backend) == 3
    assert [row[2] for row in sql.execute(HISTORY).fetchall()] == [1, 1, 1]
    assert [await state(backend, f"e-{number}") for number in range(3)] == [State.CANCELLED] * 3


async def test_events_of_two_epochs_are_in_rows_of_their_own(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    await publish(backend, "old-1", "old-2")
    sql.execute("UPDATE holdfast.store SET system_id = system_id + 1")
    renewed = PostgresBackend(backend.url)
    await renewed.open()
    await publish(renewed, "new")
    assert await empty(renewed) == 3
    assert [row[2] for row in sql.execute(HISTORY).fetchall()] == [2, 1]
    await publish(renewed, "newer")
    assert ids(await claim(renewed)) == ["newer"]
    await renewed.close()


async def test_marks_go_with_the_events_that_are_passed(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(8)))
    assert await backend.leases.cancel(CHANNEL, "default", "e-3", None) == 1
    assert await backend.leases.requeue(CHANNEL, CONSUMER, (await record(backend, "e-5")).id)
    assert sql.execute("SELECT count(*) FROM holdfast.ahead").fetchone() == (2,)
    assert await empty(backend) == 7
    assert sql.execute("SELECT count(*) FROM holdfast.ahead").fetchone() == (0,)
    assert await states(backend) == {State.CANCELLED: 8}


async def test_an_event_that_commits_later_waits_as_usual(backend: PostgresBackend, transaction: Sql) -> None:
    """Also where its number is lower than those that were cancelled."""
    await subscribe(backend)
    transaction.execute("SELECT holdfast.publish(%s, '{}', id => 'late')", [CHANNEL])
    transaction.execute(
        "SELECT holdfast.publish(%s, '{}', id => 'late-high', priority => 3::smallint)", [CHANNEL]
    )
    await publish(backend, "a", "b")
    assert await empty(backend) == 2
    transaction.commit()
    assert ids(await claim(backend)) == ["late-high", "late"]
    assert await empty(backend) == 0


async def test_more_early_events_than_one_step_looks_at_are_passed(backend: PostgresBackend) -> None:
    await backend.log.publish(CHANNEL, [Event(b"{}", f"early-{number}") for number in range(12_000)])
    await subscribe(backend, start=await backend.now(), expires_after="10m")
    await publish(backend, "a", "b")
    await backend.advance(11 * MINUTE)
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 10) == 2
    await step(backend)
    assert await states(backend) == {State.CANCELLED: 2}


async def test_rows_are_cancelled_some_thousand_at_a_time(backend: PostgresBackend) -> None:
    await subscribe(backend, ordered=True)
    events = [Event(b"{}", f"e-{n}", key=f"k-{n % 700}") for n in range(5000)]
    await backend.log.publish(CHANNEL, events)
    [held] = await claim(backend, 1)
    assert await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 10_000) == 2000
    assert await empty(backend) == 2999
    assert await complete(backend, held)
    assert await states(backend) == {State.DONE: 1, State.CANCELLED: 4999}


@pytest.mark.concurrency
@pytest.mark.parametrize("ordered", [False, True])
async def test_those_who_claim_publish_and_empty_at_once_end_each_job_once(
    backend: PostgresBackend, ordered: bool
) -> None:
    await subscribe(backend, ordered=ordered)
    for batch in range(3):
        events = [Event(b"{}", f"{batch}-{n}", key=f"k-{n % 50}") for n in range(600)]
        await backend.log.publish(CHANNEL, events)

    async def work() -> int:
        done = 0
        while jobs := await claim(backend, 7):
            assert all(await backend.leases.complete(jobs))
            done += len(jobs)
        return done

    async def feed() -> int:
        for number in range(50):
            await publish(backend, f"new-{number}", key=f"k-{number}")
        return 0

    async def cancel() -> int:
        return sum([await backend.leases.cancel_waiting(CHANNEL, CONSUMER, 40) for _ in range(20)])

    one, other, _, first, second = await asyncio.gather(work(), work(), feed(), cancel(), cancel())
    cancelled, done = first + second + await empty(backend), one + other
    assert await states(backend) == {State.DONE: done, State.CANCELLED: cancelled}
    assert done + cancelled == 1850


@pytest.mark.concurrency
@pytest.mark.parametrize("other", ["publish", "claim", "cancel", "trim"])
async def test_a_step_that_is_stopped_anywhere_takes_each_job_once(
    database: str, backend: PostgresBackend, stoppable: PostgresBackend, other: str
) -> None:
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", 600 * MINUTE)
    assert lock is not None
    for point in itertools.count(1):
        channel = f"orders-{point}"
        await subscribe(backend, channel=channel)
        await publish(backend, "high", channel=channel, priority=3)
        await publish(backend, *"abcd", channel=channel)
        await stops.stop_at(stoppable, point)
        calls = {
            "publish": lambda: publish(backend, "new", channel=channel),  # noqa: B023
            "claim": lambda: claim(backend, 2, channel=channel),  # noqa: B023
            "cancel": lambda: backend.leases.cancel(channel, "default", "c", None),  # noqa: B023
            "trim": lambda: backend.retention.trim(channel, lock.until, 100, lock),  # noqa: B023
        }
        (cancelled, result), stopped = await stops.while_stopped(
            database, stoppable.leases.cancel_waiting(channel, CONSUMER, 100), calls[other]()
        )
        await stops.stop_at(stoppable, 0)
        rest = await claim(backend, channel=channel)
        match other:
            case "publish":
                assert (cancelled, ids(rest)) in [(5, ["new"]), (6, [])], point
            case "claim":
                assert (cancelled, len(result), rest) in [(5, 0, []), (3, 2, [])], point
            case "cancel":
                assert (cancelled + result, rest) == (5, []), point
            case "trim":
                assert (cancelled, rest) == (5, []), point
        found = await states(backend, channel=channel)
        assert found.get(State.CANCELLED, 0) == cancelled + (result if other == "cancel" else 0), point
        if not stopped:
            break
    assert point > 10, "there are points at which it stopped"
