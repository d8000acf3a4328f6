"""Trimming beside everybody else: what is needed when it is removed stays, and nothing is left over."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.model.errors import LockLost
from holdfast.model.states import State
from holdfast.model.upkeep import Hold, Lock, Trim
from kit import (
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    complete,
    ids,
    publish,
    read_all,
    record,
    state,
    subscribe,
)

pytestmark = pytest.mark.concurrency

Sql = psycopg.Connection[tuple[Any, ...]]
SWEEPER = "gbe:lock:sweeper"
TRIM = "SELECT holdfast.trim('orders', 'infinity', ROW(9, 0), 100, %s, %s, '{}', '{}')"


@pytest.fixture
async def lock(backend: PostgresBackend) -> Lock:
    held = await backend.locks.acquire(SWEEPER, "me", 60 * MINUTE)
    assert held is not None
    return held


async def trim(backend: PostgresBackend, lock: Lock, limit: int = 100) -> Trim:
    """Everything that is there is old enough."""
    return await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, limit, lock)


async def left(backend: PostgresBackend) -> list[str]:
    return [entry.event.id for entry in await read_all(backend)]


CREATE = {
    "subscribe": """SELECT holdfast.subscribe('orders', 'billing', (SELECT policy FROM holdfast.consumers),
        '5m', NULL, false, false, NULL, NULL, '-infinity')""",
    "attach": "SELECT holdfast.attach('orders', 'billing', '-infinity', ROW(9, 0))",
}


@pytest.mark.parametrize("how", CREATE)
async def test_a_consumer_that_is_being_created_keeps_its_events(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock, how: str
) -> None:
    await subscribe(backend, "template", channel="elsewhere")
    await publish(backend, "a", "b")
    transaction.execute(CREATE[how])  # type: ignore[call-overload]
    trimming = asyncio.create_task(trim(backend, lock))
    await waiting(sql)
    transaction.commit()
    assert await trimming == Trim(0, False, Hold("billing", None))
    assert await left(backend) == ["a", "b"]


async def test_a_consumer_that_comes_after_the_trim_starts_after_it(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    """The positive control: the same two the other way round."""
    receipts = await publish(backend, "a", "b")
    transaction.execute(
        TRIM,
        [lock.name, lock.token],
    )
    attaching = asyncio.create_task(backend.cursors.attach(CHANNEL, "archiver"))
    await waiting(sql)
    transaction.commit()
    assert (await attaching).position == receipts[-1].position


async def test_nobody_takes_the_lock_over_in_the_midst_of_a_step(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    await publish(backend, "a")
    await backend.advance(120 * MINUTE)
    transaction.execute(
        TRIM,
        [lock.name, lock.token],
    )
    taking = asyncio.create_task(backend.locks.acquire(SWEEPER, "you", MINUTE))
    await waiting(sql)
    transaction.commit()
    taken = await taking
    assert taken is not None
    assert taken.token > lock.token


@pytest.mark.parametrize("verb", ["trim", "forget", "purge_dead"])
async def test_a_holder_that_was_paused_past_its_deadline_is_refused(
    backend: PostgresBackend, lock: Lock, verb: str
) -> None:
    await subscribe(backend)
    await publish(backend, "done", "dead")
    assert await complete(backend, await claim_one(backend))
    assert await bury(backend, await claim_one(backend))
    await backend.advance(60 * MINUTE)
    now = await backend.now()
    steps = {
        "trim": lambda held: backend.retention.trim(CHANNEL, now, 10, held),
        "forget": lambda held: backend.retention.forget(now, now, 10, held),
        "purge_dead": lambda held: backend.retention.purge_dead(CHANNEL, now, 10, held),
    }
    newer = await backend.locks.acquire(SWEEPER, "you", MINUTE)
    assert newer is not None
    with pytest.raises(LockLost, match=f"token {lock.token}"):
        await steps[verb](lock)
    assert await left(backend) == ["done", "dead"]
    assert await state(backend, "done") is State.DONE
    assert await state(backend, "dead") is State.DEAD
    await backend.advance(MINUTE)
    await steps[verb](newer)  # past its deadline, but nobody else took it


async def test_a_requeue_in_flight_keeps_its_event(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    number = int((await record(backend, "a")).id)
    transaction.execute("SELECT holdfast.requeue(%s, %s, %s)", [CHANNEL, CONSUMER, number])
    trimming = asyncio.create_task(trim(backend, lock))
    await waiting(sql)
    transaction.commit()
    assert await trimming == Trim(0, False, Hold(CONSUMER, None))
    assert ids(await claim(backend)) == ["a"]


async def test_a_requeue_behind_a_trim_in_flight_leaves_nothing_over(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    await subscribe(backend)
    await publish(backend, "dead", "done")
    jobs = await claim(backend)
    assert await bury(backend, jobs[0])
    assert await complete(backend, jobs[1])
    transaction.execute(
        TRIM,
        [lock.name, lock.token],
    )
    requeuing = asyncio.create_task(backend.leases.requeue(CHANNEL, CONSUMER, jobs[0].id))
    await waiting(sql)
    transaction.commit()
    assert await requeuing
    assert await left(backend) == ["dead"]
    assert (await trim(backend, lock)).removed == 0, "it is at work again"
    job = await claim_one(backend)
    assert job.event.json() == {"id": "dead"}
    assert await complete(backend, job)
    assert (await trim(backend, lock)).removed == 1
    assert await left(backend) == []
    assert sql.execute("SELECT count(*) FROM holdfast.released").fetchone() == (0,)


async def test_what_a_dead_letter_kept_goes_once_it_is_purged(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    await subscribe(backend)
    await subscribe(backend, "mail")
    await publish(backend, "a", "b")
    for consumer in (CONSUMER, "mail"):
        for job in await claim(backend, consumer=consumer):
            assert await (bury if job.event.id == "a" else complete)(backend, job)
    assert (await trim(backend, lock)).removed == 1
    assert await left(backend) == ["a"]
    await backend.advance(MINUTE)
    assert await backend.retention.purge_dead(CHANNEL, await backend.now(), 1, lock) in (
        {CONSUMER: 1},
        {"mail": 1},
    )
    assert (await trim(backend, lock)).removed == 0, "the other one's dead letter keeps it"
    await backend.retention.purge_dead(CHANNEL, await backend.now(), 1, lock)
    assert (await trim(backend, lock)).removed == 1
    assert await left(backend) == []
    assert sql.execute("SELECT count(*) FROM holdfast.released").fetchone() == (0,)
    assert sql.execute("SELECT coalesce(sum(dead), 0) FROM holdfast.dead_totals").fetchone() == (0,)
    outcomes = sql.execute("SELECT outcome, count(*) FROM holdfast.job_log GROUP BY 1 ORDER BY 1").fetchall()
    assert outcomes == [("done", 2), ("purged", 2)]


async def test_a_kept_event_that_is_too_young_for_the_new_limit_stays(
    backend: PostgresBackend, lock: Lock
) -> None:
    await subscribe(backend)
    start = await backend.now()
    await publish(backend, "a")
    assert await bury(backend, await claim_one(backend))
    assert (await trim(backend, lock)).removed == 0
    await backend.retention.purge_dead(CHANNEL, await backend.now() + MINUTE, 10, lock)
    assert (await backend.retention.trim(CHANNEL, start, 100, lock)).removed == 0
    assert (await trim(backend, lock)).removed == 1


@pytest.mark.parametrize("ended", ["first", "last"])
async def test_a_transaction_that_began_early_and_published_late_holds_back_the_right_event(
    bus: Bus, backend: PostgresBackend, transaction: Sql, lock: Lock, ended: str
) -> None:
    await subscribe(backend)
    transaction.execute("SELECT pg_current_xact_id()")
    await publish(backend, "first")
    await bus.publish(CHANNEL, 1, id="last", connection=transaction)
    transaction.commit()
    assert await left(backend) == ["first", "last"]
    for job in await claim(backend):
        if job.event.id == ended:
            assert await complete(backend, job)
    step = await trim(backend, lock)
    assert step.hold is not None
    assert (step.removed, step.hold.consumer) == ((1, CONSUMER) if ended == "first" else (0, CONSUMER))
    assert await left(backend) == (["last"] if ended == "first" else ["first", "last"])


async def test_a_step_through_large_data_is_short(backend: PostgresBackend, sql: Sql, lock: Lock) -> None:
    await publish(backend, *(f"e-{n}" for n in range(3)))
    sql.execute("UPDATE holdfast.log SET data = convert_to(repeat('x', 150000000), 'UTF8')")
    steps = [await trim(backend, lock) for _ in range(3)]
    assert [(step.removed, step.more) for step in steps] == [(1, True), (1, True), (1, False)]


async def test_history_and_views_survive_a_trim(backend: PostgresBackend, sql: Sql, lock: Lock) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    assert await complete(backend, await claim_one(backend))
    before = await record(backend, "a")
    assert (await trim(backend, lock)).removed == 1
    assert await record(backend, "a") == before
    assert sql.execute("SELECT payload, outcome FROM holdfast.event_log").fetchall() == [(None, "done")]
    [again] = await publish(backend, "a")
    assert (again.duplicate, again.position) == (True, before.position)


async def test_a_group_that_is_listed_holds_everything(backend: PostgresBackend, lock: Lock) -> None:
    await publish(backend, "a")
    assert not backend.capabilities.foreign_groups
    assert await backend.groups.all(MINUTE) == []
    step = await backend.retention.trim(CHANNEL, await backend.now() + MINUTE, 10, lock, groups=["theirs"])
    assert step == Trim(0, False, Hold("theirs", None))


async def test_trims_beside_publishers_workers_and_readers_lose_nothing(
    backend: PostgresBackend, lock: Lock
) -> None:
    """Everything at once: each event is done once, and a guarded reader sees each."""
    await subscribe(backend, backoff=["0s"])
    await backend.cursors.attach(CHANNEL, "archiver")
    expected, done, read = 400, list[str](), list[str]()

    async def publisher(number: int) -> None:
        for turn in range(20):
            await publish(backend, *(f"{number}-{turn}-{n}" for n in range(5)))

    async def worker() -> None:
        while len(done) < expected:
            for job in await claim(backend, 7):
                assert await complete(backend, job)
                done.append(job.event.id)

    async def reader() -> None:
        position: str | None = None
        while len(read) < expected:
            if cuts := await backend.log.cuts(CHANNEL, position, 20, 10):
                read.extend(
                    [n async for p in backend.log.pages(CHANNEL, position, cuts[-1][0], 10) for n in p.ids]
                )
                assert await backend.cursors.move(CHANNEL, "archiver", position, cuts[-1][0])
                position = cuts[-1][0]

    async def sweeper() -> None:
        removed = 0
        while removed < expected:
            removed += (await trim(backend, lock, 15)).removed

    async with asyncio.timeout(60):
        await asyncio.gather(*(publisher(n) for n in range(4)), worker(), reader(), sweeper())
    assert len(set(done)) == len(done) == expected
    assert len(set(read)) == len(read) == expected
    assert await left(backend) == []
