"""ranges: one row for many jobs. Nobody who works with a job can tell whether it had a row of its own."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg
import pytest
from explain import explain, pooled

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Session
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, MINUTE, claim, ids, publish, states, subscribe, until

Sql = psycopg.Connection[tuple[Any, ...]]
BATCH = 2500
ALL = [f"b-{number}" for number in range(BATCH)]
ROWS = "SELECT count(*), count(upto) FROM holdfast.jobs"


async def bulk(backend: PostgresBackend, most: int = BATCH, name: str = "b", priority: int = 0) -> None:
    await backend.log.publish(
        CHANNEL, [Event(b"{}", f"{name}-{number}") for number in range(most)], priority=priority
    )


@pytest.fixture
async def ranged(backend: PostgresBackend) -> PostgresBackend:
    """A store with 2,500 jobs in three ranges."""
    await subscribe(backend)
    await bulk(backend)
    return backend


async def test_a_bulk_publish_writes_a_row_for_a_thousand_jobs(ranged: PostgresBackend, sql: Sql) -> None:
    assert sql.execute("SELECT upto - seq + 1 FROM holdfast.jobs ORDER BY seq").fetchall() == [
        (1000,),
        (1000,),
        (500,),
    ]
    assert await states(ranged) == {State.READY: BATCH}
    assert sql.execute("SELECT event_id FROM holdfast.events ORDER BY id").fetchall() == [(i,) for i in ALL]


async def test_what_is_not_alike_has_rows_of_its_own(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend, "lanes", ordered=True)
    await subscribe(backend, "hasty", expires_after="1h")
    await bulk(backend, 200)
    await subscribe(backend, "plain")
    events = [Event(b"{}", f"later-{number}") for number in range(200)]
    await backend.log.publish(CHANNEL, events, at=await backend.now() + 60 * MINUTE)
    assert sql.execute(ROWS).fetchall() == [(2 * 200 + 3 * 200, 0)]


@pytest.mark.parametrize("limit", [1, 7, 100, 999, 1000, 10_000])
async def test_a_claim_takes_in_order_whatever_its_size(backend: PostgresBackend, limit: int) -> None:
    await subscribe(backend)
    await publish(backend, "first")
    await bulk(backend, 250, "old")
    await publish(backend, "between")
    await bulk(backend, 250, "young")
    await publish(backend, "last")
    await bulk(backend, 200, "urgent", priority=5)
    await publish(backend, "most urgent", priority=6)
    taken: list[Job] = []
    while jobs := await claim(backend, limit):
        assert len(jobs) == min(limit, 704 - len(taken)), "a claim takes as many as there are"
        taken += jobs
    old, young, urgent = ([f"{name}-{n}" for n in range(250)] for name in ("old", "young", "urgent"))
    assert ids(taken) == ["most urgent", *urgent[:200], "first", *old, "between", *young, "last"]
    assert {(job.attempt, job.token) for job in taken} == {(1, 1)}


async def test_small_claims_do_not_write_the_rest_again_and_again(ranged: PostgresBackend, sql: Sql) -> None:
    await claim(ranged, 1)
    assert sql.execute(ROWS).fetchall() == [(100 + 3, 3)], "one leased, 99 ready, and what is left"
    before = sql.execute("SELECT ctid FROM holdfast.jobs WHERE upto IS NOT NULL").fetchall()
    for _ in range(99):
        await claim(ranged, 1)
    assert sql.execute("SELECT ctid FROM holdfast.jobs WHERE upto IS NOT NULL").fetchall() == before


@pytest.mark.concurrency
async def test_many_who_take_at_once_share_the_jobs(ranged: PostgresBackend) -> None:
    async def worker(limit: int) -> list[Job]:
        taken: list[Job] = []
        while jobs := await claim(ranged, limit):
            taken += jobs
        return taken

    taken = await asyncio.gather(*(worker(limit) for limit in (1, 3, 10, 50, 120, 500, 700, 2000)))
    assert Counter(ids(job for jobs in taken for job in jobs)) == Counter(ALL)
    assert await states(ranged) == {State.LEASED: BATCH}


async def test_one_who_stalls_while_it_takes_holds_up_no_other(
    ranged: PostgresBackend, transaction: Sql
) -> None:
    names = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "stalled", "limit": 10}
    stalled = transaction.execute(QUERIES["claim"], names).fetchall()
    assert [row[7] for row in stalled] == ALL[:10]
    assert ids(await claim(ranged, BATCH)) == ALL[1000:], "its range is passed over"
    assert await claim(ranged, 10) == [], "and nobody waits for ever for what is left of it"
    transaction.rollback()
    assert ids(await claim(ranged, BATCH)) == ALL[:1000]


async def test_what_somebody_leaves_of_a_stretch_is_waited_for(
    backend: PostgresBackend, transaction: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend)
    await bulk(backend, 500)
    names = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "other", "limit": 400}
    transaction.execute(QUERIES["claim"], names)
    rows, answers = Session.rows, []

    async def rows_then_commit(self: Session, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        answers.append(await rows(self, name, **parameters))
        transaction.commit()
        return answers[-1]

    monkeypatch.setattr(Session, "rows", rows_then_commit)
    mine = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "w"}
    assert ids(await backend.leases._claim_unordered(500, mine)) == ALL[400:500]
    assert [answer[0][2] for answer in answers[:1]] == [None], "nothing was free at first"


async def test_what_was_taken_before_the_store_went_away_is_handed_out(
    ranged: PostgresBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, asked = Session.rows, count(1)

    async def rows_but_twice(self: Session, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        if name == "claim" and next(asked) > 2:
            raise holdfast.Unavailable("gone")
        return await rows(self, name, **parameters)

    monkeypatch.setattr(Session, "rows", rows_but_twice)
    assert ids(await claim(ranged, BATCH)) == ALL[:2000]
    with pytest.raises(holdfast.Unavailable):
        await claim(ranged, BATCH)


@pytest.mark.parametrize("number", [0, 1, 500, 998, 999, 1000, 2499])
async def test_a_job_inside_is_cancelled_alone(ranged: PostgresBackend, number: int) -> None:
    [found] = await ranged.leases.find_jobs(CHANNEL, "default", ALL[number])
    assert (found.state, found.event_id, found.token) == (State.READY, ALL[number], 0)
    assert await ranged.leases.cancel(CHANNEL, "default", ALL[number], None) == 1
    assert await ranged.leases.cancel(CHANNEL, "default", ALL[number], None) == 0
    assert await states(ranged) == {State.READY: BATCH - 1, State.CANCELLED: 1}
    assert ids(await claim(ranged, BATCH)) == ALL[:number] + ALL[number + 1 :]


async def test_a_job_inside_is_requeued_alone(ranged: PostgresBackend) -> None:
    [found] = await ranged.leases.find_jobs(CHANNEL, "default", "b-1234")
    assert await ranged.leases.requeue(CHANNEL, CONSUMER, found.id)
    *others, requeued = await claim(ranged, BATCH)
    assert ids(others) == ALL[:1234] + ALL[1235:]
    assert (requeued.event.id, requeued.token) == ("b-1234", 2)


async def test_an_event_is_cancelled_for_every_consumer(ranged: PostgresBackend) -> None:
    await subscribe(ranged, "late", start="earliest")
    await subscribe(ranged, "other")
    await bulk(ranged, 300, "c")
    assert await ranged.leases.cancel(CHANNEL, "default", "c-17", None) == 3
    assert await ranged.leases.cancel(CHANNEL, "default", "c-18", "other") == 1


async def test_a_cancel_finds_the_job_in_a_row_that_it_did_not_see(
    ranged: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    names = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "other", "limit": 600}
    transaction.execute(QUERIES["claim"], names)
    cancelling = asyncio.create_task(ranged.leases.cancel(CHANNEL, "default", "b-999", None))
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def waits() -> bool:
        return len(sql.execute(waiting).fetchall()) == 1

    await until(waits, 60)
    transaction.commit()
    assert await cancelling == 1


@pytest.mark.concurrency
async def test_cancels_and_claims_at_once_never_get_the_same_job(ranged: PostgresBackend) -> None:
    async def cancel(number: int) -> list[str]:
        return [ALL[number]] * await ranged.leases.cancel(CHANNEL, "default", ALL[number], None)

    async def take() -> list[str]:
        return ids([job for _ in range(10) for job in await claim(ranged, 30)])

    ended = await asyncio.gather(*map(cancel, range(0, 900, 9)), *(take() for _ in range(3)))
    counted = Counter(name for names in ended for name in names)
    counted.update(ids(await claim(ranged, BATCH)))
    assert counted == Counter(ALL)


async def test_jobs_in_a_stretch_are_counted_one_by_one(ranged: PostgresBackend) -> None:
    [backlog] = await ranged.channels.backlogs(10_000)
    assert (backlog.live[State.READY], backlog.oldest_ready is not None) == (BATCH, True)
    [backlog] = await ranged.channels.backlogs(1700)
    assert backlog.live[State.READY] == 1700
    assert (await ranged.lifecycle.due(10)).load >= BATCH - 3

    await subscribe(ranged, max_depth=BATCH + 1)
    await publish(ranged, "fits")
    with pytest.raises(Exception, match=f"holds {BATCH + 1} live jobs"):
        await publish(ranged, "does not fit")
    await ranged.leases.complete(await claim(ranged, 10))
    await publish(ranged, "does not fit")


async def test_a_consumer_is_removed_with_its_ranges(ranged: PostgresBackend, sql: Sql) -> None:
    await claim(ranged, 10)
    removed = [await ranged.channels.remove_consumer(CHANNEL, CONSUMER, 50)]
    while not removed[-1].done:
        removed.append(await ranged.channels.remove_consumer(CHANNEL, CONSUMER, 50))
    assert sum(step.jobs for step in removed) == BATCH
    assert sql.execute(ROWS).fetchall() == [(0, 0)]


async def test_the_log_is_kept_for_what_is_left_of_a_stretch(ranged: PostgresBackend, sql: Sql) -> None:
    lock = await ranged.locks.acquire("sweeper", "me", MINUTE)
    assert lock is not None
    for done in (700, 500):
        await ranged.leases.complete(await claim(ranged, done))
        before = await ranged.now() + timedelta(days=1)
        trim = await ranged.retention.trim(CHANNEL, before, BATCH, lock)
        assert (trim.removed, trim.hold and trim.hold.consumer) == (done, CONSUMER)
    [(first,)] = sql.execute("SELECT id FROM holdfast.log ORDER BY seq LIMIT 1").fetchall()
    assert first == ALL[1200]


async def test_a_claim_finds_its_stretch_by_an_index(
    database: str, backend: PostgresBackend, sql: Sql
) -> None:
    await subscribe(backend)
    sql.execute(
        """
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, seq, upto, due_at, created_at, state)
        SELECT c.id, c.channel_id, 1, n * 1000, n * 1000 + 999, now(), now(), 'ready'
        FROM holdfast.consumers c, generate_series(1, 20000) n"""
    )
    async with pooled(database) as connection:
        names = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "w", "limit": 50}
        plan = await explain(connection, "claim", run=True, **names)
    assert plan.scanned == set(), plan.text
    assert "jobs_ranges" in plan.indexes
    assert plan.buffers <= 2000, f"{plan.buffers} pages: {plan.text}"


def test_only_what_is_alike_can_be_a_stretch(sql: Sql) -> None:
    insert = """
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, seq, due_at, created_at, state, upto,
                                   {}) VALUES (1, 1, 1, 10, now(), now(), 'ready', {}, {})"""
    sql.execute(insert.format("token", 10, 0))
    for column, upto, value in (("token", 9, 0), ("token", 20, 1), ("held", 20, "true")):
        with pytest.raises(psycopg.errors.CheckViolation):
            sql.execute(insert.format(column, upto, value))
