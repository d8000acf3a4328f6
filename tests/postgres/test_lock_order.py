"""Batches of the same jobs at once: every statement locks its rows in the order of their ids, so that no two
of them wait for each other, in whatever order they are named and lie on the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import DEFAULT_SOURCE
from holdfast.model.job import Burial, Cancellation, Job, Reason, Retry
from kit import BOOM, CHANNEL, LEASE, MINUTE, claim, publish, step, subscribe, until

Sql = psycopg.Connection[tuple[Any, ...]]
Verb = Callable[[PostgresBackend, Sequence[Job]], Awaitable[object]]
ON_LEASED: dict[str, Verb] = {
    "complete": lambda backend, jobs: backend.leases.complete(jobs),
    "retry": lambda backend, jobs: backend.leases.retry([Retry(job, None, BOOM) for job in jobs]),
    "bury": lambda backend, jobs: backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in jobs]),
    "extend": lambda backend, jobs: backend.leases.extend(jobs, MINUTE),
}
ON_OVERDUE = {"abandon": {"max_abandonments": 3}, "bury what is overdue": {"max_abandonments": 1}}
ORDERS: dict[str, Callable[[Sequence[Job]], Sequence[Job]]] = {
    "forwards": lambda jobs: jobs,
    "backwards": lambda jobs: jobs[::-1],
}


async def leased(backend: PostgresBackend, **policy: Any) -> list[Job]:
    """Five jobs with rows of their own, in the order of the log, that lie on the disk the other way round."""
    await subscribe(backend, **policy)
    await publish(backend, *"abcde")
    jobs = await claim(backend)
    for job in reversed(jobs):
        assert await backend.leases.extend([job], LEASE) == [True]
    return jobs


async def leased_together(backend: PostgresBackend, **policy: Any) -> list[Job]:
    """Six jobs in three rows, each of members of one token."""
    await subscribe(backend, **policy)
    await publish(backend, *"abcdef")
    return [job for _ in range(3) for job in await claim(backend, 2)]


async def locks_in_order(
    call: Awaitable[object],
    first: Sql,
    other: Sql,
    rows: LiteralString = "holdfast.jobs ORDER BY consumer_id, id",
) -> None:
    """Somebody has locked the first row: whoever waits for it has locked none of the others."""
    first.execute(f"SELECT FROM {rows} LIMIT 1 FOR UPDATE")
    [[there]] = other.execute(f"SELECT count(*) FROM (SELECT FROM {rows}) r").fetchall()
    [[pid]] = first.execute("SELECT pg_backend_pid()").fetchall()
    task = asyncio.ensure_future(call)

    async def waits() -> bool:
        found = other.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))", [pid]
        ).fetchone()
        return found == (1,)

    try:
        await until(waits)
        free = other.execute(f"SELECT FROM {rows} FOR UPDATE SKIP LOCKED").fetchall()
    finally:
        first.rollback()
        await task
    assert len(free) == there - 1 > 0


@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("verb", list(ON_LEASED))
async def test_of_leased_jobs(
    backend: PostgresBackend, transaction: Sql, sql: Sql, verb: str, order: str
) -> None:
    jobs = ORDERS[order](await leased(backend))
    await locks_in_order(ON_LEASED[verb](backend, jobs), transaction, sql)


@pytest.mark.parametrize("part", ["all", "half"])
@pytest.mark.parametrize("order", list(ORDERS))
@pytest.mark.parametrize("verb", list(ON_LEASED))
async def test_of_rows_of_members(
    backend: PostgresBackend, transaction: Sql, sql: Sql, verb: str, order: str, part: str
) -> None:
    jobs = await leased_together(backend)
    named = ORDERS[order](jobs if part == "all" else jobs[::2])
    await locks_in_order(ON_LEASED[verb](backend, named), transaction, sql)


@pytest.mark.parametrize("lease", [leased, leased_together])
@pytest.mark.parametrize("verb", list(ON_OVERDUE))
async def test_of_overdue_leases(
    backend: PostgresBackend, transaction: Sql, sql: Sql, verb: str, lease: Callable[..., Awaitable[object]]
) -> None:
    await lease(backend, **ON_OVERDUE[verb])
    await backend.advance(2 * LEASE)
    await locks_in_order(step(backend), transaction, sql)


async def test_of_scheduled_jobs(backend: PostgresBackend, transaction: Sql, sql: Sql) -> None:
    jobs = await leased(backend)
    for job in reversed(jobs):
        await backend.leases.retry([Retry(job, MINUTE, BOOM)])
    await backend.advance(2 * MINUTE)
    await locks_in_order(step(backend), transaction, sql)


async def test_of_what_expired_while_it_waited(backend: PostgresBackend, transaction: Sql, sql: Sql) -> None:
    jobs = await leased(backend, expires_after=timedelta(minutes=3))
    for job in reversed(jobs):
        await backend.leases.retry([Retry(job, None, None)])
    await backend.advance(2 * LEASE)
    await locks_in_order(step(backend), transaction, sql)


async def many_consumers(backend: PostgresBackend) -> None:
    """One job for each of five bounded consumers, whose rows lie on the disk the other way round."""
    for name in "abcde":
        await subscribe(backend, name, max_depth=10)
    await publish(backend, "first")
    for name in reversed("abcde"):
        [job] = await claim(backend, consumer=name)
        assert await backend.leases.retry([Retry(job, None, None)]) == [True]


async def test_of_the_jobs_of_an_event_that_is_cancelled(
    backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    await many_consumers(backend)
    await locks_in_order(backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, "first", None), transaction, sql)


@pytest.mark.parametrize("apart", [False, True])
async def test_of_the_leases_of_an_event_that_is_cancelled_while_it_runs(
    backend: PostgresBackend, transaction: Sql, sql: Sql, apart: bool
) -> None:
    """Each consumer's job is with others in a row, or has one of its own; the rows lie on the disk the other
    way round."""
    for name in "abcde":
        await subscribe(backend, name)
    await publish(backend, "first", "second")
    for name in reversed("abcde"):
        jobs = await claim(backend, consumer=name)
        if apart:
            assert await backend.leases.extend(jobs[:1], LEASE) == [True]
            assert await backend.leases.complete(jobs[1:]) == [True]
    how = Cancellation(running=True)
    cancelled = backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, "first", None, how)
    await locks_in_order(cancelled, transaction, sql)


async def test_of_the_depths_of_several_consumers(
    backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    """A publish takes them in this order, too."""
    await many_consumers(backend)
    for ref in range(5, 0, -1):
        sql.execute("UPDATE holdfast.depths SET live = live WHERE consumer_id = %s", [ref])
    cancelled = backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, "first", None)
    await locks_in_order(cancelled, transaction, sql, "holdfast.depths ORDER BY consumer_id")


FRONTIERS: dict[str, Callable[[PostgresBackend], Awaitable[object]]] = {
    "cancel": lambda backend: backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, "first", None),
    "expiry": step,
}


@pytest.mark.parametrize("verb", list(FRONTIERS))
async def test_of_the_frontiers_of_several_consumers(
    backend: PostgresBackend, transaction: Sql, sql: Sql, verb: str
) -> None:
    """Whoever waits for the first holds none of the others."""
    for name in "abcde":
        await subscribe(backend, name, expires_after=MINUTE)
    await publish(backend, "first")
    if verb == "expiry":
        await backend.advance(2 * MINUTE)
    refs = [ref for (ref,) in sql.execute("SELECT id FROM holdfast.consumers ORDER BY id").fetchall()]
    transaction.execute("SELECT holdfast.lock_frontier(%s)", refs[:1])
    task = asyncio.ensure_future(FRONTIERS[verb](backend))
    try:
        await waiting(sql)
        free = [sql.execute("SELECT pg_try_advisory_xact_lock(1215655477, %s)", [ref]) for ref in refs[1:]]
        assert [each.fetchone() for each in free] == [(True,)] * 4
    finally:
        transaction.rollback()
        await task
