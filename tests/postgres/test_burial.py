"""Burial: the move to dead is one step, or it has not happened."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.job import Job, Retry
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    abandon,
    bury,
    claim_one,
    complete,
    publish,
    read_all,
    record,
    states,
    subscribe,
)

Sql = psycopg.Connection[tuple[Any, ...]]
DEAD = "orders.dead"

# Each lets a later part of the move fail, as a full disk or a broken constraint would.
OBSTACLES = {
    "the dead-letter channel": "log",
    "the dead letter": "dead_letters",
    "the count": "dead_deltas",
}
BREAK = """
    CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no room'; END $$;
    CREATE TRIGGER refuse BEFORE INSERT ON holdfast.{} FOR EACH ROW EXECUTE FUNCTION refuse()
"""


@pytest.fixture
async def job(backend: PostgresBackend) -> Job:
    await backend.channels.create(DEAD)
    await subscribe(backend, dead_letter=DEAD, max_abandonments=1)
    await publish(backend, "a")
    return await claim_one(backend)


def broken(sql: Sql, table: str) -> None:
    sql.execute(BREAK.format(table))  # type: ignore[arg-type]


def mended(sql: Sql, table: str) -> None:
    sql.execute(f"DROP TRIGGER refuse ON holdfast.{table}")


@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_a_move_that_fails_in_any_part_has_not_happened(
    backend: PostgresBackend, sql: Sql, job: Job, obstacle: str
) -> None:
    # CORRECTIONS 002.6 and 002.7: nothing is deleted while the target is unreachable; one transaction.
    table = OBSTACLES[obstacle]
    before = await record(backend, "a")
    broken(sql, table)
    with pytest.raises(psycopg.errors.RaiseException, match="no room"):
        await bury(backend, job)
    assert await record(backend, "a") == before
    assert await states(backend) == {State.LEASED: 1}
    assert await read_all(backend, DEAD) == []
    mended(sql, table)
    assert await bury(backend, job), "the lease is still ours"
    assert await states(backend) == {State.DEAD: 1}
    assert len(await read_all(backend, DEAD)) == 1


@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_the_lifecycle_tries_again_until_it_can(
    backend: PostgresBackend, sql: Sql, job: Job, obstacle: str
) -> None:
    # CORRECTIONS 002.6 and 002.7
    broken(sql, OBSTACLES[obstacle])
    with pytest.raises(psycopg.errors.RaiseException, match="no room"):
        await abandon(backend)
    assert await states(backend) == {State.LEASED: 1}
    mended(sql, OBSTACLES[obstacle])
    assert (await abandon(backend, 0 * LEASE)).buried == 1
    assert (await record(backend, "a")).reason == "crash_loop"
    assert len(await read_all(backend, DEAD)) == 1


@pytest.mark.parametrize("alone", [False, True])
async def test_a_job_cannot_be_done_twice_even_by_hand(
    backend: PostgresBackend, sql: Sql, job: Job, alone: bool
) -> None:
    if alone:
        assert await backend.leases.retry([Retry(job, None, None)]) == [True]
        job = await claim_one(backend)
    assert await complete(backend, job)
    assert sql.execute("SELECT members IS NULL FROM holdfast.history").fetchall() == [(alone,)]
    columns = ", ".join(
        column
        for (column,) in sql.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'holdfast'"
            " AND table_name = 'history' AND is_generated = 'NEVER'"
        ).fetchall()
    )
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql.execute(f"INSERT INTO holdfast.history ({columns}) SELECT {columns} FROM holdfast.history")  # type: ignore[arg-type]


async def test_a_second_death_leaves_a_second_copy_and_one_dead_letter(
    backend: PostgresBackend, job: Job
) -> None:
    assert await bury(backend, job)
    assert await backend.leases.requeue(CHANNEL, CONSUMER, job.id)
    assert await bury(backend, await claim_one(backend))
    copies = await read_all(backend, DEAD)
    assert len({copy.event.id for copy in copies}) == 2, "each death has its own id, so that neither is lost"
    assert {copy.event.headers["holdfast-id"] for copy in copies} == {"a"}
    assert await states(backend) == {State.DEAD: 1}
