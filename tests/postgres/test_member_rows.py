"""Rows of members: one row for jobs that are leased together. Nobody who works with a job can tell whether
it has a row of its own."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.event import Event
from holdfast.model.job import Burial, Cancellation, Job, Reason, Retry
from holdfast.model.states import State
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    abandon,
    bury,
    by_id,
    claim,
    claim_one,
    complete,
    fail,
    ids,
    publish,
    record,
    state,
    states,
    step,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
ROWS = "SELECT count(*) FILTER (WHERE members IS NULL), coalesce(sum(n), 0)::int FROM holdfast.jobs"
"""How many jobs have a row of their own, and how many jobs have rows."""
SIZES = "SELECT n FROM holdfast.jobs WHERE members IS NOT NULL ORDER BY token"
HELD = {"channel": CHANNEL, "consumer": CONSUMER, "worker": "slow", "limit": 10}


def names(count: int, name: str = "b") -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


async def bulk(backend: PostgresBackend, count: int, name: str = "b", priority: int = 0) -> None:
    events = [Event(b"{}", each) for each in names(count, name)]
    await backend.log.publish(CHANNEL, events, priority=priority)


@pytest.fixture
async def ten(backend: PostgresBackend, sql: Sql) -> list[Job]:
    """Ten jobs that are leased in one row."""
    await subscribe(backend)
    await bulk(backend, 10)
    jobs = await claim(backend)
    assert sql.execute(SIZES).fetchall() == [(10,)]
    assert len({job.token for job in jobs}) == 1
    return jobs


@pytest.mark.parametrize("size", [1, 7, 100, 128, 129, 1000])
async def test_claims_of_every_size_hand_out_everything_once_and_in_order(
    backend: PostgresBackend, sql: Sql, size: int
) -> None:
    await subscribe(backend)
    await publish(backend, "first")
    await bulk(backend, 60)
    await publish(backend, "between")
    await bulk(backend, 300 if size == 1 else 1500, "c")
    await publish(backend, "last")
    wanted = ["first", *names(60), "between", *names(300 if size == 1 else 1500, "c"), "last"]
    taken: list[Job] = []
    while jobs := await claim(backend, size):
        assert len(jobs) == min(size, len(wanted) - len(taken)), "a claim takes as many as there are"
        rows = sorted(Counter(job.token for job in jobs).values(), reverse=True)
        assert rows == [128] * (len(jobs) // 128) + [len(jobs) % 128] * (len(jobs) % 128 > 0)
        taken += jobs
    assert ids(taken) == wanted
    assert {job.attempt for job in taken} == {1}
    assert sql.execute(ROWS).fetchone() == (0, len(wanted))
    assert await states(backend) == {State.LEASED: len(wanted)}
    assert all(await backend.leases.complete(taken))
    assert sql.execute(ROWS).fetchone() == (0, 0)
    assert await states(backend) == {State.DONE: len(wanted)}


@pytest.mark.concurrency
async def test_many_who_claim_at_once_share_the_jobs(backend: PostgresBackend) -> None:
    await subscribe(backend)
    await bulk(backend, 2500)

    async def worker(limit: int) -> list[Job]:
        taken: list[Job] = []
        while jobs := await claim(backend, limit):
            taken += jobs
        return taken

    taken = await asyncio.gather(*(worker(limit) for limit in (3, 10, 50, 120, 500, 700)))
    assert Counter(ids(job for jobs in taken for job in jobs)) == Counter(names(2500))
    assert await states(backend) == {State.LEASED: 2500}


@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_claims_take_turns(backend: PostgresBackend, transaction: Sql, sql: Sql, end: str) -> None:
    """Behind an open claim nobody skips what it may give back, or takes it twice."""
    await subscribe(backend)
    await bulk(backend, 30)
    await subscribe(backend, "other", start="earliest")
    transaction.execute(QUERIES["claim"], HELD)
    claiming = asyncio.create_task(claim(backend))
    await waiting(sql)
    assert ids(await claim(backend, consumer="other")) == names(30), "others have their own turns"
    getattr(transaction, end)()
    assert ids(await claiming) == names(30)[0 if end == "rollback" else 10 :]


@pytest.mark.parametrize("end", ["rollback", "commit"])
async def test_what_ends_jobs_does_not_wait_for_a_claim(
    backend: PostgresBackend, transaction: Sql, end: str
) -> None:
    await subscribe(backend)
    await bulk(backend, 50)
    jobs = await claim(backend, 20)
    transaction.execute(QUERIES["claim"], HELD)
    async with asyncio.timeout(60):
        assert all(await backend.leases.complete(jobs[:9]))
        assert all(await backend.leases.extend(jobs[9:], LEASE))
        assert all(await backend.leases.retry([Retry(job, None, None) for job in jobs[9:12]]))
        assert await bury(backend, jobs[12])
    getattr(transaction, end)()
    left = names(50)[9:12] + names(50)[20 if end == "rollback" else 30 :]
    assert ids(await claim(backend)) == left


async def test_what_differs_has_rows_of_its_own(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend, "keys", ordered=True)
    await subscribe(backend)
    await bulk(backend, 5, "urgent", priority=3)
    later = await backend.now() + MINUTE
    await backend.log.publish(CHANNEL, [Event(b"{}", each) for each in names(5, "later")], at=later)
    await bulk(backend, 5)
    assert ids(await claim(backend, consumer="keys")) == [*names(5, "urgent"), *names(5)]
    assert sql.execute(ROWS).fetchone() == (15, 15)
    assert ids(await claim(backend)) == [*names(5, "urgent"), *names(5)]
    assert sql.execute(ROWS).fetchone() == (15 + 10, 15 + 15)


async def test_partial_completes_shrink_a_row(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    await bulk(backend, 128)
    left = by_id(await claim(backend, 128))
    order = names(128)
    random.Random(7).shuffle(order)
    for end, start in ((1, 0), (4, 1), (40, 4), (127, 40), (128, 127)):
        done = [left.pop(each) for each in order[start:end]]
        assert all(await backend.leases.complete(done))
        assert not any(await backend.leases.complete(done)), "once"
        assert await states(backend) == {State.DONE: end} | ({State.LEASED: 128 - end} if left else {})
        assert sql.execute(SIZES).fetchall() == ([(128 - end,)] if left else [])
        found = sql.execute("SELECT members FROM holdfast.jobs").fetchall()
        assert found == ([(sorted(int(job.id) for job in left.values()),)] if left else [])
    assert sql.execute("SELECT sum(n), count(*) FROM holdfast.history").fetchone() == (128, 5)


async def test_one_call_completes_rows_of_every_kind(backend: PostgresBackend, sql: Sql) -> None:
    """A whole row, half of another, all that is left of a third, and a job that has come out of one."""
    await subscribe(backend)
    await bulk(backend, 40)
    whole, half, left, out = [await claim(backend, 10) for _ in range(4)]
    assert all(await backend.leases.complete(left[::3]))
    assert all(await backend.leases.extend(out[4:6], LEASE))
    assert sql.execute(ROWS).fetchone() == (2, 36)
    named = [*out[4:5], *half[1::2], *left, *whole, *out[:2]]
    random.Random(3).shuffle(named)
    again = set(ids(left[::3]))
    assert await backend.leases.complete(named) == [job.event.id not in again for job in named]
    assert await states(backend) == {State.LEASED: 5 + 7, State.DONE: 40 - 12}
    rest = [*half[::2], *out[2:4], *out[5:]]
    assert all(await backend.leases.complete(rest))
    assert sql.execute(ROWS).fetchone() == (0, 0)


async def requeue(backend: PostgresBackend, job: Job) -> bool:
    return await backend.leases.requeue(CHANNEL, CONSUMER, job.id)


async def extend(backend: PostgresBackend, job: Job) -> bool:
    [accepted] = await backend.leases.extend([job], 10 * MINUTE)
    return accepted


async def cancel(backend: PostgresBackend, job: Job) -> bool:
    how = Cancellation(running=True)
    return await backend.leases.cancel(CHANNEL, "default", job.event.id, CONSUMER, how) == 1


VERBS: dict[str, tuple[Callable[[PostgresBackend, Job], Awaitable[bool]], State]] = {
    "retry": (fail, State.READY),
    "bury": (bury, State.DEAD),
    "extend": (extend, State.LEASED),
    "requeue": (requeue, State.READY),
    "cancel": (cancel, State.CANCELLED),
}


@pytest.mark.parametrize("at", [0, 4, 9])
@pytest.mark.parametrize("verb", list(VERBS))
async def test_a_verb_on_one_member_leaves_its_neighbours_leased(
    backend: PostgresBackend, sql: Sql, ten: list[Job], verb: str, at: int
) -> None:
    act, becomes = VERBS[verb]
    before = {job.event.id: await record(backend, job.event.id) for job in ten}
    assert await act(backend, ten[at])
    assert await state(backend, ten[at].event.id) is becomes
    others = ten[:at] + ten[at + 1 :]
    assert [await record(backend, job.event.id) for job in others] == [before[job.event.id] for job in others]
    assert sql.execute(SIZES).fetchall() == [(9,)]
    assert await backend.leases.complete(ten) == [job is not ten[at] or verb == "extend" for job in ten]
    assert sql.execute(ROWS).fetchone() == ((1, 1) if becomes is State.READY else (0, 0))


async def test_a_cancel_leaves_a_member_where_it_is(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    assert await backend.leases.cancel(CHANNEL, "default", "b-3", None) == 0
    assert sql.execute(SIZES).fetchall() == [(10,)]
    assert all(await backend.leases.complete(ten))


COUNTED = """
    CREATE TABLE holdfast.written (n integer);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO holdfast.written VALUES (1); RETURN NULL; END $$;
    CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON holdfast.jobs FOR EACH ROW EXECUTE FUNCTION note()
"""


@pytest.mark.parametrize("order", [1, -1])
async def test_an_extend_of_all_members_writes_one_row(
    backend: PostgresBackend, sql: Sql, ten: list[Job], order: int
) -> None:
    sql.execute(COUNTED)
    assert all(await backend.leases.extend(ten[::order], 10 * MINUTE))
    assert sql.execute("SELECT count(*) FROM holdfast.written").fetchone() == (1,)
    assert sql.execute(SIZES).fetchall() == [(10,)]
    await backend.advance(LEASE)
    assert (await step(backend)).total == 0, "all of it runs on"
    await backend.advance(LEASE)
    assert (await step(backend)).abandoned == 10


async def test_an_extend_of_what_is_left_of_a_row_writes_one_row(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    """The members that are done, or have come out of it, are no members any more."""
    assert all(await backend.leases.complete(ten[:3]))
    assert await fail(backend, ten[3])
    sql.execute(COUNTED)
    assert await backend.leases.extend(ten, 10 * MINUTE) == [False] * 4 + [True] * 6
    assert sql.execute("SELECT count(*) FROM holdfast.written").fetchone() == (1,)
    assert sql.execute(SIZES).fetchall() == [(6,)]


async def test_an_extend_of_some_members_leaves_the_others_their_deadline(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    assert all(await backend.leases.extend(ten[2:5], 10 * MINUTE))
    assert (await abandon(backend)).abandoned == 7
    assert await states(backend) == {State.LEASED: 3, State.READY: 7}
    assert await backend.leases.complete(ten) == [2 <= n < 5 for n in range(10)]


async def test_a_vanished_workers_row_comes_back_job_by_job(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    assert await complete(backend, ten[0])
    assert {found.event_id for found in await backend.leases.stuck(100)} == set()
    await backend.advance(LEASE)
    assert [found.event_id for found in await backend.leases.stuck(100)] == names(10)[1:]
    assert (await step(backend)).abandoned == 9
    assert sql.execute(ROWS).fetchone() == (9, 9)
    for job in ten[1:]:
        found = await record(backend, job.event.id)
        assert (found.state, found.attempts, found.abandonments) == (State.READY, 0, 1)
    assert not any(await backend.leases.complete(ten))
    again = await claim(backend)
    assert sorted(ids(again)) == sorted(names(10)[1:])
    assert {(job.attempt, job.abandonments) for job in again} == {(1, 1)}


async def test_a_row_that_is_too_long_for_one_step_comes_back_in_several(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    await backend.advance(LEASE)
    due = (await backend.lifecycle.due(4)).due
    assert len(due) == 4
    [token] = {each.token for each in due}
    refs = {"consumers": [each.ref[0] for each in due], "seqs": [each.ref[1] for each in due]}
    fenced = {"tokens": [token] * 4, "errors": ["{}"] * 4}
    assert await backend._session.rows("abandon", **refs, **fenced) == [(4,)]
    assert await states(backend) == {State.LEASED: 6, State.READY: 4}
    assert (await step(backend)).abandoned == 6
    assert await states(backend) == {State.READY: 10}


async def test_a_poison_event_does_not_bury_its_neighbours(backend: PostgresBackend) -> None:
    """It takes every worker with it that has it in hand; those leased with it once are not to blame."""
    await subscribe(backend, max_abandonments=2)
    await bulk(backend, 10)
    await claim(backend)
    assert (await abandon(backend)).abandoned == 10
    while jobs := await claim(backend, 1):
        if jobs[0].event.id != "b-4":
            assert await complete(backend, jobs[0])
        else:
            assert (await abandon(backend)).buried == 1
    assert await states(backend) == {State.DONE: 9, State.DEAD: 1}
    assert (await record(backend, "b-4")).reason == "crash_loop"


REFUSED: dict[str, Callable[[PostgresBackend, Sequence[Job]], Awaitable[list[bool]]]] = {
    "complete": lambda backend, jobs: backend.leases.complete(jobs),
    "retry": lambda backend, jobs: backend.leases.retry([Retry(job, MINUTE, BOOM) for job in jobs]),
    "bury": lambda backend, jobs: backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in jobs]),
    "extend": lambda backend, jobs: backend.leases.extend(jobs, 10 * MINUTE),
}


@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("verb", list(REFUSED))
async def test_a_stale_token_of_one_member_is_refused_and_its_neighbours_are_accepted(
    backend: PostgresBackend, ten: list[Job], verb: str, claimed: bool
) -> None:
    await subscribe(backend, max_attempts="unlimited")
    assert await requeue(backend, ten[6])
    fresh = await claim_one(backend) if claimed else None
    assert await REFUSED[verb](backend, ten) == [job is not ten[6] for job in ten]
    assert await state(backend, "b-6") is (State.LEASED if claimed else State.READY)
    if fresh is not None:
        assert await complete(backend, fresh)


async def test_a_job_that_was_done_in_a_row_is_found_by_its_number(backend: PostgresBackend) -> None:
    await subscribe(backend)
    await bulk(backend, 300)
    first, second = await claim(backend, 150), await claim(backend, 150)
    for jobs in (first[::3], second[1::2], first[1::3], second[::2], first[2::3]):
        assert all(await backend.leases.complete(jobs))
    await subscribe(backend, "other", start="earliest")
    for number, job in enumerate([*first, *second]):
        found = await backend.leases.job(CHANNEL, CONSUMER, job.id)
        assert found is not None
        assert (found.state, found.event_id, found.token, found.attempts) == (
            State.DONE,
            f"b-{number}",
            job.token,
            1,
        )
        others = await backend.leases.job(CHANNEL, "other", job.id)
        assert others is not None
        assert others.state is State.READY
    assert await backend.leases.job(CHANNEL, CONSUMER, str(int(second[-1].id) + 1)) is None
    assert await backend.leases.job(CHANNEL, CONSUMER, str(int(first[0].id) - 1)) is None


async def test_rows_have_one_epoch_each(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    for epoch, count in enumerate((5, 1, 200, 40)):
        sql.execute("UPDATE holdfast.store SET epoch = epoch + 1")
        await bulk(backend, count, f"e{epoch}")
    jobs = await claim(backend, 1000)
    wanted = [name for epoch, count in enumerate((5, 1, 200, 40)) for name in names(count, f"e{epoch}")]
    assert ids(jobs) == wanted
    by_epoch = "SELECT sum(n)::int FROM holdfast.jobs GROUP BY epoch ORDER BY epoch"
    assert sql.execute(by_epoch).fetchall() == [(5,), (1,), (200,), (40,)]
    mixed = """
        SELECT count(*) FROM holdfast.jobs j CROSS JOIN LATERAL unnest(j.members) m (seq)
        WHERE NOT EXISTS (SELECT FROM holdfast.log l WHERE l.epoch = j.epoch AND l.seq = m.seq)"""
    assert sql.execute(mixed).fetchone() == (0,)
    assert all(await backend.leases.complete(jobs))


async def test_numbers_in_a_row_are_not_far_apart(backend: PostgresBackend, sql: Sql) -> None:
    """The sequence jumps, as after a failover; a publish that began early may bring back low numbers."""
    await subscribe(backend)
    for turn in range(6):
        await bulk(backend, 20, f"t{turn}")
        sql.execute(
            "SELECT setval('holdfast.event_seq', nextval('holdfast.event_seq') + 131072 * (1::bigint << %s))",
            [11 + turn % 3],
        )
    jobs = await claim(backend, 1000)
    assert ids(jobs) == [name for turn in range(6) for name in names(20, f"t{turn}")]
    [(rows, widest)] = sql.execute(
        "SELECT count(*), max(members[n] - members[1]) FROM holdfast.jobs"
    ).fetchall()
    assert (rows > 1, widest < 1 << 30) == (True, True)
    assert all(await backend.leases.complete(jobs))
    for job in jobs:
        found = await backend.leases.job(CHANNEL, CONSUMER, job.id)
        assert found is not None
        assert found.state is State.DONE


LIVE = """
    SELECT (SELECT live FROM holdfast.depths),
           (SELECT count(*) FROM holdfast.live_jobs j JOIN holdfast.consumers c ON c.id = j.consumer_id
            WHERE c.name = 'billing')"""


@pytest.mark.parametrize("on_dead", ["keep", "discard"])
async def test_depths_of_bounded_consumers_are_exact_whatever_becomes_of_rows(
    backend: PostgresBackend, sql: Sql, on_dead: str
) -> None:
    await subscribe(backend, max_depth=10_000, max_abandonments=10_000, on_dead=on_dead)
    await subscribe(backend, "unbounded")
    dice, held, number = random.Random(11), list[Job](), 0
    for turn in range(60):
        match dice.choice(
            ["publish", "claim", "complete", "retry", "bury", "extend", "requeue", "cancel", "abandon"]
        ):
            case "publish":
                number += 1
                await bulk(backend, dice.choice([1, 30, 210]), f"p{number}", dice.choice([0, 0, 1]))
            case "claim":
                held += await claim(backend, dice.choice([1, 20, 300]))
            case "abandon":
                await abandon(backend, LEASE if turn % 2 else MINUTE)
            case "cancel":
                await backend.leases.cancel(CHANNEL, "default", f"p{dice.randint(1, number + 1)}-0", CONSUMER)
            case verb if held:
                some = dice.sample(held, dice.choice([1, len(held) // 2 + 1, len(held)]))
                if verb == "requeue":
                    ended = await state(backend, some[0].event.id) in {State.DONE, State.DISCARDED}
                    assert await requeue(backend, some[0]) is not ended
                else:
                    await REFUSED[verb](backend, some)
        live, counted = sql.execute(LIVE).fetchall()[0]
        assert live == counted, turn
    await backend.advance(60 * MINUTE)
    while (await step(backend)).total:
        pass
    while jobs := await claim(backend, 1000):
        assert all(await backend.leases.complete(jobs))
    assert sql.execute(LIVE).fetchall() == [(0, 0)]


async def test_members_are_shown_one_by_one(backend: PostgresBackend, sql: Sql, ten: list[Job]) -> None:
    shown = "SELECT event_id, status::text, lease_until FROM holdfast.events ORDER BY id"
    assert sql.execute(shown).fetchall() == [(job.event.id, "PROCESSING", job.lease_until) for job in ten]
    [backlog] = await backend.channels.backlogs(1000)
    assert backlog.live[State.LEASED] == 10


async def test_a_consumer_is_removed_with_its_rows(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    assert all(await backend.leases.complete(ten[:4]))
    await bulk(backend, 50, "c")
    await claim(backend, 20)
    removed = [await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1)]
    while not removed[-1].done:
        removed.append(await backend.channels.remove_consumer(CHANNEL, CONSUMER, 1))
    assert sum(each.jobs for each in removed) == 6 + 50
    assert sum(each.history for each in removed) == 4
    assert sql.execute(ROWS).fetchone() == (0, 0)


async def test_the_log_is_kept_for_the_first_member_that_is_left(
    backend: PostgresBackend, sql: Sql, ten: list[Job]
) -> None:
    lock = await backend.locks.acquire("gbe:lock:sweeper", "me", 60 * MINUTE)
    assert lock is not None
    first = "SELECT id FROM holdfast.log ORDER BY seq LIMIT 1"
    for done, left in ((ten[1:3], "b-0"), (ten[0:1], "b-3"), (ten[3:7], "b-7")):
        assert all(await backend.leases.complete(done))
        trim = await backend.retention.trim(CHANNEL, await backend.now() + timedelta(days=1), 100, lock)
        assert (trim.hold and trim.hold.consumer) == CONSUMER
        assert sql.execute(first).fetchone() == (left,)
    assert await fail(backend, ten[7])
    assert ids(await claim(backend)) == ["b-7"], "it has not lost its event"


def test_only_what_is_alike_can_be_members(sql: Sql) -> None:
    insert = """
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, token, state, lease_until, members,
                                   order_key, data)
        VALUES (1, 1, 1, {id}, {token}, {state}, {lease_until}, {members}, {order_key}, {data})"""
    good = {
        "id": "-5",
        "token": "5",
        "state": "'leased'",
        "lease_until": "now()",
        "members": "ARRAY[1, 2]",
        "order_key": "NULL",
        "data": "NULL",
    }
    sql.execute(insert.format(**good))  # type: ignore[arg-type]
    bad = [
        {"id": "-6"},
        {"id": "5"},
        {"members": "NULL"},
        {"members": "'{}'"},
        {"order_key": "'k'"},
        {"data": "''"},
    ]
    bad += [{"state": "'ready'", "lease_until": "NULL"}]
    for change in bad:
        with pytest.raises(psycopg.errors.CheckViolation):
            sql.execute(insert.format(**good | change))  # type: ignore[arg-type]
