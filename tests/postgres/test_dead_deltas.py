"""Dead letters on PostgreSQL: counts by deltas, what folds and mends them, and the seed's summary."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from explain import waiting

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.deadletters import DeadCount, Drift, Fold
from holdfast.model.decide import describe
from holdfast.model.errors import LockLost
from holdfast.model.job import Burial, Reason
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from kit import (
    BOOM,
    CHANNEL,
    CONSUMER,
    MINUTE,
    bury,
    claim,
    claim_one,
    publish,
    record,
    states,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
NO_TIME = timedelta(0)
SWEEPER = "gbe:lock:sweeper"
ALL = 1_000_000


@pytest.fixture
async def lock(backend: PostgresBackend) -> Lock:
    held = await backend.locks.acquire(SWEEPER, "me", 60 * MINUTE)
    assert held is not None
    return held


async def die(backend: PostgresBackend, *ids: str) -> None:
    await publish(backend, *ids)
    assert all(
        await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in await claim(backend, 1000)])
    )


def deltas(sql: Sql) -> int:
    [(number,)] = sql.execute("SELECT count(*) FROM holdfast.dead_deltas").fetchall()
    return int(number)


def counted(sql: Sql) -> tuple[int, int]:
    """The sum of the counts by reason and by fingerprint, deltas included."""
    [row] = sql.execute(
        """SELECT coalesce((SELECT sum(dead) FROM holdfast.dead_totals), 0)::bigint,
                  coalesce((SELECT sum(dead) FROM holdfast.cluster_totals), 0)::bigint"""
    ).fetchall()
    return row[0], row[1]


# CORRECTIONS 004


async def test_what_commits_late_is_counted_once(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    # CORRECTIONS 004.1: a count by "changed since" would miss it, or count its neighbours twice.
    await subscribe(backend)
    await die(backend, "late", "early")
    late = await record(backend, "late")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [late.id]) == [True]
    job = await claim_one(backend)
    transaction.execute(
        """SELECT holdfast.bury(ARRAY[consumer_id], ARRAY[id], ARRAY[token], ARRAY['terminal'],
                                ARRAY['{}'::jsonb], ARRAY['f'], false, false) FROM holdfast.jobs"""
    )
    assert (await backend.deadletters.fold(NO_TIME, 0, lock)).folded == 2
    assert counted(sql) == (1, 1)
    transaction.commit()
    assert counted(sql) == (2, 2)
    assert await backend.deadletters.fold(NO_TIME, 0, lock) == Fold(1)
    assert counted(sql) == (2, 2)
    assert not await bury(backend, job)


async def test_no_count_is_ever_negative(backend: PostgresBackend, sql: Sql, lock: Lock) -> None:
    # CORRECTIONS 004.2: nothing is taken off that was not counted before, in whichever order it is folded.
    await subscribe(backend)
    await die(backend, "a", "b")
    await backend.deadletters.fold(NO_TIME, 0, lock)
    dead = [(await record(backend, name)).id for name in ("a", "b")]
    for _ in range(3):
        assert await backend.deadletters.revive(CHANNEL, CONSUMER, dead) == [True, True]
        sql.execute("SELECT holdfast.fold_deltas(1)")
        assert counted(sql) == (0, 0)
        for job in await claim(backend):
            assert await bury(backend, job)
        sql.execute("SELECT holdfast.fold_deltas(1)")
        assert counted(sql) == (2, 2)
    assert await backend.deadletters.purge(CHANNEL, CONSUMER, dead) == [True, True]
    await backend.deadletters.fold(NO_TIME, 0, lock)
    left = sql.execute("SELECT * FROM holdfast.dead_counts UNION ALL SELECT * FROM holdfast.dead_clusters")
    assert left.fetchall() == [], "what is zero is not kept"


async def test_a_fold_that_is_cut_short_has_not_happened(
    backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    # CORRECTIONS 004.3: a checkpoint per consumer, in transactions of their own, loses deltas in a crash.
    await subscribe(backend)
    await subscribe(backend, "mail")
    await die(backend, "a", "b")
    for job in await claim(backend, consumer="mail"):
        assert await bury(backend, job)
    before = deltas(sql)
    assert transaction.execute("SELECT holdfast.fold_deltas()").fetchone() == (before,)
    assert (counted(sql), deltas(sql)) == ((4, 4), before)
    transaction.rollback()
    assert (counted(sql), deltas(sql)) == ((4, 4), before)
    sql.execute("SELECT holdfast.fold_deltas()")
    assert (counted(sql), deltas(sql)) == ((4, 4), 0)


def forget_counts(sql: Sql) -> None:
    """As a store looks that was filled before there were counts."""
    sql.execute("TRUNCATE holdfast.dead_counts, holdfast.dead_clusters, holdfast.dead_deltas")
    sql.execute("UPDATE holdfast.dead_summary SET bootstrapped_at = NULL")


async def test_what_was_there_is_counted_once_in_the_life_of_a_store(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    # CORRECTIONS 004.4
    await subscribe(backend)
    await die(backend, "a", "b", "c")
    forget_counts(sql)
    first = await backend.deadletters.fold(60 * MINUTE, ALL, lock)
    assert (first.bootstrapped, first.skipped) == (True, False), "however fresh"
    assert counted(sql) == (3, 3)
    assert await backend.deadletters.counts() == [DeadCount(CHANNEL, CONSUMER, "terminal", 3)]
    assert [cluster.count for cluster in await backend.deadletters.clusters(None, None, 10)] == [3]
    for _ in range(2):
        assert await backend.deadletters.fold(NO_TIME, 0, lock) == Fold(0)
    assert counted(sql) == (3, 3)


async def test_a_store_without_dead_letters_is_not_counted_again_and_again(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    # CORRECTIONS 004.4: no dead jobs meant an empty summary, and that meant a full count each time.
    assert await backend.deadletters.fold(NO_TIME, 0, lock) == Fold(0), "a new store has nothing to count"
    forget_counts(sql)
    assert (await backend.deadletters.fold(NO_TIME, 0, lock)).bootstrapped
    assert not (await backend.deadletters.fold(NO_TIME, 0, lock)).bootstrapped


async def test_a_count_that_outlasts_its_lock_counts_nothing(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    # CORRECTIONS 004.5: two that count at once, since the first lock had ended, would count twice.
    await subscribe(backend)
    await die(backend, "a", "b", "c")
    forget_counts(sql)
    transaction.execute("SELECT holdfast.fold_lock()")
    slow = asyncio.create_task(backend.deadletters.fold(NO_TIME, 0, lock))
    await waiting(sql)
    await backend.advance(61 * MINUTE)
    newer = await backend.locks.acquire(SWEEPER, "another", 60 * MINUTE)
    assert newer is not None
    transaction.rollback()
    with pytest.raises(LockLost, match=SWEEPER):
        await slow
    assert counted(sql) == (0, 0)
    assert (await backend.deadletters.fold(NO_TIME, 0, newer)).bootstrapped
    assert counted(sql) == (3, 3)


async def test_the_lock_can_be_renewed_while_the_count_goes_on(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    # CORRECTIONS 004.5
    forget_counts(sql)
    transaction.execute("SELECT holdfast.fold_lock()")
    slow = asyncio.create_task(backend.deadletters.fold(NO_TIME, 0, lock))
    await waiting(sql)
    assert (await backend.locks.renew(lock, 90 * MINUTE)).token == lock.token
    transaction.rollback()
    assert (await slow).bootstrapped


async def test_a_burial_does_not_wait_for_whoever_folds(
    backend: PostgresBackend, sql: Sql, transaction: Sql
) -> None:
    await subscribe(backend)
    await die(backend, "a")
    transaction.execute("SELECT holdfast.fold_lock(), holdfast.fold_deltas()")
    sql.execute("ALTER SEQUENCE holdfast.dead_deltas_id_seq RESTART WITH 256")
    await die(backend, "b")
    assert counted(sql) == (2, 2)
    transaction.commit()
    assert (counted(sql), deltas(sql)) == ((2, 2), 1)
    sql.execute("ALTER SEQUENCE holdfast.dead_deltas_id_seq RESTART WITH 512")
    await die(backend, "c")
    assert (counted(sql), deltas(sql)) == ((3, 3), 0), "now and then the one who buries folds"


# folding and recounting


async def test_a_fresh_summary_is_left_alone_unless_too_much_waits(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    await subscribe(backend)
    await backend.deadletters.fold(NO_TIME, 0, lock)
    await die(backend, "a")
    assert await backend.deadletters.fold(10 * MINUTE, 1, lock) == Fold(0, skipped=True)
    await die(backend, "b")
    assert await backend.deadletters.fold(10 * MINUTE, 1, lock) == Fold(2), "more than one delta waits"
    await die(backend, "c")
    await backend.advance(10 * MINUTE)
    assert await backend.deadletters.fold(10 * MINUTE, ALL, lock) == Fold(1), "it is no longer fresh"
    assert (deltas(sql), counted(sql)) == (0, (3, 3))


async def test_wrong_counts_are_told_and_mended(backend: PostgresBackend, sql: Sql, lock: Lock) -> None:
    await subscribe(backend)
    await subscribe(backend, "mail")
    await die(backend, "a", "b")
    await backend.deadletters.fold(NO_TIME, 0, lock)
    sql.execute("UPDATE holdfast.dead_counts SET dead = 7")
    sql.execute(
        """INSERT INTO holdfast.dead_counts
           SELECT id, 'expired', 4 FROM holdfast.consumers WHERE name = 'mail'"""
    )
    sql.execute("DELETE FROM holdfast.dead_clusters")
    expected = [
        Drift(CHANNEL, CONSUMER, "terminal", 7, 2),
        Drift(CHANNEL, CONSUMER, f"fingerprint {BOOM.fingerprint}", 0, 2),
        Drift(CHANNEL, "mail", "expired", 4, 0),
    ]
    assert await backend.deadletters.recount(False, lock) == expected
    assert await backend.deadletters.recount(True, lock) == expected
    assert await backend.deadletters.recount(True, lock) == []
    assert counted(sql) == (2, 2)
    assert await backend.deadletters.counts() == [DeadCount(CHANNEL, CONSUMER, "terminal", 2)]


@pytest.mark.concurrency
async def test_a_repair_is_right_whatever_moves_meanwhile(
    backend: PostgresBackend, sql: Sql, transaction: Sql, lock: Lock
) -> None:
    await subscribe(backend)
    await die(backend, "a", "b", "c")
    forget_counts(sql)
    transaction.execute(
        "DELETE FROM holdfast.dead_letters WHERE seq = (SELECT min(seq) FROM holdfast.dead_letters)"
    )
    drifts = await backend.deadletters.recount(True, lock)
    assert [drift.found for drift in drifts] == [3, 3], "what is not committed has not moved"
    transaction.commit()
    assert counted(sql) == (2, 2)
    assert await backend.deadletters.recount(False, lock) == []


# the seed's summary


async def test_the_summary_has_the_columns_of_the_seed(
    backend: PostgresBackend, sql: Sql, lock: Lock
) -> None:
    await subscribe(backend)
    await subscribe(backend, "mail")
    await backend.channels.set_display(CHANNEL, None, "Order Events")
    await backend.channels.set_display(CHANNEL, CONSUMER, "Billing Service")
    await die(backend, "a", "b")
    cursor = sql.execute('SELECT * FROM holdfast.dlq_summary ORDER BY "consumerId"')
    assert [column.name for column in cursor.description or ()] == [
        "consumerId",
        "consumerName",
        "channelId",
        "channelName",
        "dead_count",
        "last_checked_at",
    ]
    rows = cursor.fetchall()
    assert [row[:5] for row in rows] == [
        (CONSUMER, "Billing Service", CHANNEL, "Order Events", 2),
        ("mail", "mail", CHANNEL, "Order Events", 0),
    ]
    await backend.advance(MINUTE)
    await backend.deadletters.fold(NO_TIME, 0, lock)
    [(later,)] = sql.execute("SELECT DISTINCT last_checked_at FROM holdfast.dlq_summary").fetchall()
    assert later - rows[0][5] >= MINUTE


# columns


async def test_a_patch_is_a_column_that_others_do_not_pay_for(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    await die(backend, "a", "b")
    a = await record(backend, "a")
    assert await backend.deadletters.revive(CHANNEL, CONSUMER, [a.id], b"patched") == [True]
    assert sql.execute("SELECT data FROM holdfast.jobs").fetchall() == [(b"patched",)]
    assert sql.execute("SELECT data FROM holdfast.dead_letters").fetchall() == [(None,)]
    assert await backend.leases.complete([await claim_one(backend)]) == [True]
    assert await states(backend) == {State.DONE: 1, State.DEAD: 1}
    held = sql.execute(
        """SELECT table_name FROM information_schema.columns
           WHERE table_schema = 'holdfast' AND udt_name = 'bytea' AND column_name = 'data'"""
    ).fetchall()
    assert {name for (name,) in held} == {"jobs", "dead_letters", "log"}, "it is nowhere once the job is done"


async def test_two_kinds_of_error_are_two_groups_of_one_statement(backend: PostgresBackend, sql: Sql) -> None:
    await subscribe(backend)
    await publish(backend, *(f"e-{n}" for n in range(20)))
    failures = [describe(f"error of kind {'ab'[n % 2]}") for n in range(20)]
    jobs = await claim(backend)
    burials = [Burial(job, Reason.TERMINAL, failure) for job, failure in zip(jobs, failures, strict=True)]
    assert all(await backend.leases.bury(burials))
    found = sql.execute("SELECT reason, fingerprint, change FROM holdfast.dead_deltas").fetchall()
    assert sorted(found) == sorted(("terminal", failure.fingerprint, 10) for failure in set(failures))
