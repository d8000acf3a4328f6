"""Completing a job in one's own transaction: effect and completion are one, and nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any, TypeVar

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from explain import waiting
from psycopg import AsyncConnection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import holdfast
from holdfast import failpoints
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import Session as Sessions
from holdfast.bus.client import Bus
from holdfast.model.job import Completion, Job, Retry
from holdfast.model.states import State
from kit import (
    CHANNEL,
    CONSUMER,
    LEASE,
    MINUTE,
    abandon,
    claim,
    ids,
    publish,
    record,
    state,
    states,
    subscribe,
)
from pooler import PgBouncer, need_pgbouncer

Sql = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")
EFFECT = "INSERT INTO effects VALUES ('done')"
SOON = 20.0
"""Much longer than anything here takes, and shorter than whoever waits for a lock gives up."""


@pytest.fixture(autouse=True)
def _effects(sql: Sql) -> None:
    sql.execute("CREATE TABLE effects (what text)")


@pytest.fixture
async def jobs(bus: Bus) -> list[Job]:
    """Four jobs of one lease."""
    return await polled(bus, 4)


async def polled(bus: Bus, count: int, **policy: Any) -> list[Job]:
    await bus.subscribe(CHANNEL, CONSUMER, **policy)
    events = [
        holdfast.Event(b"1", f"e-{n}", key="k" if policy.get("ordered") else None) for n in range(count)
    ]
    await bus.publish_many(CHANNEL, events)
    return await bus.poll(CHANNEL, CONSUMER, limit=count)


def effects(sql: Sql) -> int:
    [[count]] = sql.execute("SELECT count(*) FROM effects").fetchall()
    return int(count)


async def soon(call: Awaitable[T]) -> T:
    async with asyncio.timeout(SOON):
        return await call


@asynccontextmanager
async def in_block(job: Job, *, plain: bool = False) -> AsyncIterator[Callable[[str], Awaitable[Any]]]:
    """A statement's way into the transaction of a job, of an async handler or of one in a thread."""
    if plain:
        with job.transaction() as connection:
            yield lambda text: asyncio.to_thread(connection.execute, text)
    else:
        async with job.transaction() as connection:
            yield connection.execute


Step = str | Callable[[], Awaitable[Any]]


async def run(job: Job, *steps: Step, plain: bool = False) -> None:
    """A handler that does this in a transaction of its job."""
    async with in_block(job, plain=plain) as execute:
        for step in steps:
            await (execute(step) if isinstance(step, str) else step())


async def boom() -> None:
    raise ZeroDivisionError


# in its own transaction


@pytest.mark.parametrize("plain", [False, True])
async def test_the_effect_and_the_completion_are_committed_together(
    bus: Bus, backend: PostgresBackend, sql: Sql, jobs: list[Job], plain: bool
) -> None:
    async with in_block(jobs[1], plain=plain) as execute:
        await execute(EFFECT)
        assert (effects(sql), await state(backend, "e-1")) == (0, State.LEASED)
    assert (effects(sql), await state(backend, "e-1")) == (1, State.DONE)
    assert jobs[1].completion is Completion.DONE
    assert bus.counters.outcomes == {(CHANNEL, CONSUMER, "done"): 1}
    # As any other that was completed: in the history, the views and the counts.
    await bus.finalize_many([jobs[0], *jobs[2:]], success=True)
    mine, others = await record(backend, "e-1"), await record(backend, "e-2")
    assert (mine.state, mine.token, mine.attempts, mine.worker) == (
        others.state,
        others.token,
        1,
        others.worker,
    )
    assert await states(backend) == {State.DONE: 4}
    log = sql.execute(
        "SELECT event_id, status, attempts, outcome FROM holdfast.event_log ORDER BY 1"
    ).fetchall()
    assert log == [(f"e-{n}", "COMPLETED", 1, "done") for n in range(4)]
    assert sql.execute("SELECT * FROM holdfast.events").fetchall() == []


@pytest.mark.parametrize("plain", [False, True])
async def test_an_error_in_the_block_undoes_both(
    bus: Bus, backend: PostgresBackend, sql: Sql, jobs: list[Job], plain: bool
) -> None:
    with pytest.raises(ZeroDivisionError):
        await run(jobs[0], EFFECT, boom, plain=plain)
    assert (effects(sql), await state(backend, "e-0")) == (0, State.LEASED)
    # A second try of the handler's own, and then one that fails at its commit.
    sql.execute("ALTER TABLE effects ADD CONSTRAINT once UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    await run(jobs[0], EFFECT, plain=plain)
    with pytest.raises(psycopg.errors.UniqueViolation):
        await run(jobs[1], EFFECT, plain=plain)
    assert (effects(sql), await state(backend, "e-0"), await state(backend, "e-1")) == (1, "done", "leased")
    await bus.finalize(jobs[1], success=True)


@pytest.mark.parametrize("plain", [False, True])
async def test_a_lease_that_is_lost_in_the_block_undoes_its_effect(
    backend: PostgresBackend, sql: Sql, jobs: list[Job], plain: bool
) -> None:

    async def lose() -> None:
        assert (await abandon(backend)).abandoned == 4
        assert len(await claim(backend)) == 4

    with pytest.raises(holdfast.LeaseLost):
        await run(jobs[0], EFFECT, lose, plain=plain)
    with pytest.raises(holdfast.LeaseLost):  # before the block
        await run(jobs[1], EFFECT, plain=plain)
    assert (effects(sql), await states(backend)) == (0, {State.LEASED: 4})


async def test_of_a_consumer_that_was_removed_and_made_anew_no_job_is_completed(
    backend: PostgresBackend, sql: Sql, jobs: list[Job]
) -> None:

    async def renew() -> None:
        assert (await backend.channels.remove_consumer(CHANNEL, CONSUMER, 100)).done
        await subscribe(backend, start="earliest")
        assert len(await claim(backend)) == 4

    with pytest.raises(holdfast.LeaseLost):
        await run(jobs[0], EFFECT, renew)
    assert (effects(sql), await states(backend)) == (0, {State.LEASED: 4})


async def test_a_store_that_is_promoted_meanwhile_takes_nothing_of_an_earlier_epoch(
    backend: PostgresBackend, sql: Sql, jobs: list[Job]
) -> None:

    async def promote() -> None:
        sql.execute("UPDATE holdfast.store SET timeline = timeline - 1")

    with pytest.raises(psycopg.DatabaseError, match="promoted or restored"):
        await run(jobs[0], EFFECT, promote)
    assert (effects(sql), await state(backend, "e-0")) == (0, State.LEASED)


async def test_what_a_block_is_refused(bus: Bus, sql: Sql, jobs: list[Job]) -> None:
    job = jobs[0]
    async with job.transaction() as connection:
        with pytest.raises(holdfast.InvalidInput, match="already"):
            await run(job, boom)
        with pytest.raises(psycopg.ProgrammingError):
            await connection.commit()
    with pytest.raises(holdfast.InvalidInput, match="was completed"):
        await run(job, boom)
    with pytest.raises(holdfast.InvalidInput, match="COMMIT"):
        await run(jobs[1], "ROLLBACK")
    async with jobs[1].transaction() as connection:
        await connection.execute("SAVEPOINT before")
        with pytest.raises(psycopg.errors.UndefinedTable):
            await connection.execute("SELECT * FROM nothing")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):  # as at the end of the block
            await connection.execute("SELECT 1")
        await connection.execute("ROLLBACK TO before")
    await bus.finalize_many(jobs[2:], success=True)
    with pytest.raises(holdfast.InvalidInput, match="polled"):
        Job("1", CHANNEL, CONSUMER, job.event, "", 1, 0, 1, job.lease_until).transaction()


async def test_a_statement_that_fails_behind_the_block_undoes_it(
    backend: PostgresBackend, sql: Sql, jobs: list[Job]
) -> None:
    """PostgreSQL answers a commit of what has failed with no error."""
    async with jobs[1].transaction() as connection:
        await connection.execute(EFFECT)
    failpoints.activate("transaction.before_commit", lambda: connection.pgconn.exec_(b"SELECT 1 / 0"))
    with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="rolled back"):
        await run(jobs[0], EFFECT)
    assert (effects(sql), await state(backend, "e-0")) == (1, State.LEASED)
    assert await backend.leases.completions(jobs[:1]) == [Completion.NONE]


@pytest.mark.parametrize("plain", [False, True])
async def test_nothing_of_a_session_is_left_to_the_next_handler(
    sql: Sql, jobs: list[Job], plain: bool
) -> None:
    found = []
    for job in jobs[:2]:
        async with in_block(job, plain=plain) as execute:
            found.append(await as_row(await execute("SELECT pg_backend_pid(), current_setting('work_mem')")))
            await execute("SET work_mem = '1234kB'")
            await execute("SELECT pg_advisory_lock(1)")
    assert found[0] == found[1], "the same connection, as it was"
    assert sql.execute("SELECT pg_try_advisory_lock(1)").fetchone() == (True,)
    # And nothing at all of one that was cut off within a statement.
    cut = "SELECT pg_terminate_backend(pg_backend_pid())" if plain else "SELECT pg_sleep(60)"
    with pytest.raises((TimeoutError, psycopg.Error)):
        await asyncio.wait_for(run(jobs[2], EFFECT, cut, plain=plain), None if plain else 0.3)
    await run(jobs[2], EFFECT, plain=plain)
    assert effects(sql) == 1


async def as_row(cursor: Any) -> tuple[Any, ...]:
    found = cursor.fetchone()
    return tuple(await found if isinstance(found, Awaitable) else found)


async def test_connections_that_the_server_has_ended_cost_no_attempt(sql: Sql, jobs: list[Job]) -> None:
    await run(jobs[0])
    await run(jobs[1], plain=True)
    sql.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND datname = current_database() AND backend_type = 'client backend'"
    )
    await run(jobs[2], EFFECT)
    await run(jobs[3], EFFECT, plain=True)
    assert effects(sql) == 2


async def test_a_server_without_a_connection_left_says_what_to_do(database: str, sql: Sql) -> None:
    user = psycopg.conninfo.conninfo_to_dict(database)["user"]
    sql.execute("DROP ROLE IF EXISTS few")
    sql.execute(f"CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT 3 IN ROLE {user}")  # type: ignore[arg-type]
    scheme, _, place = database.partition("://")
    try:
        async with Bus(
            [PostgresBackend(f"{scheme}://few:few@{place.partition('@')[2]}", connections=1)]
        ) as bus:
            jobs = await polled(bus, 3)
            async with jobs[0].transaction(), jobs[1].transaction():
                for plain in (False, True):
                    with pytest.raises(
                        holdfast.Unavailable, match=r"too many .*lower the handler's concurrency"
                    ):
                        await run(jobs[2], boom, plain=plain)
            await run(jobs[2])
    finally:
        sql.execute("DROP ROLE few")


# many at once


async def test_open_transactions_of_one_lease_do_not_wait_for_one_another(
    bus: Bus, backend: PostgresBackend, sql: Sql
) -> None:
    """All of them complete their jobs before the first one commits; their neighbours go on meanwhile."""
    jobs = await polled(bus, 40, backoff=["0s"])
    mine, others = jobs[:31], jobs[31:]
    completed = asyncio.Barrier(len(mine) + 1)

    async def handle(job: Job) -> None:
        async with await AsyncConnection.connect(bus.partitions.all[0].backend.url) as connection:
            await connection.execute(EFFECT)
            await bus.finalize(job, success=True, connection=connection)
            await completed.wait()
            await completed.wait()

    handlers = [asyncio.create_task(handle(job)) for job in mine]
    await soon(completed.wait())
    assert await soon(backend.leases.extend(jobs, LEASE)) == [True] * 40
    assert await soon(backend.leases.complete(others[:3])) == [True] * 3
    await soon(bus.finalize_many(others[3:6], success=False, error="no"))
    await soon(bus.release(others[6]))
    assert len(await soon(claim(backend))) == 4
    assert (effects(sql), await states(backend)) == (0, {State.DONE: 3, State.LEASED: 37})
    await soon(completed.wait())
    await soon(asyncio.gather(*handlers))
    assert (effects(sql), await states(backend)) == (31, {State.DONE: 34, State.LEASED: 6})


async def test_blocks_of_one_lease_run_at_once(bus: Bus, backend: PostgresBackend, sql: Sql) -> None:
    jobs = await polled(bus, 31)
    inside = asyncio.Barrier(31)

    async def handle(job: Job) -> None:
        async with job.transaction() as connection:
            await connection.execute(EFFECT)
            await inside.wait()

    await soon(asyncio.gather(*map(handle, jobs)))
    assert (effects(sql), await states(backend)) == (31, {State.DONE: 31})


@pytest.mark.parametrize("commits", [True, False])
async def test_a_completion_holds_the_lease_until_its_transaction_ends(
    bus: Bus,
    backend: PostgresBackend,
    sql: Sql,
    transaction: Sql,
    jobs: list[Job],
    commits: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long that takes; and time goes on for the others."""
    monkeypatch.setattr("holdfast.backends.postgres.session.LOCK_TRIES", 3)
    monkeypatch.setattr("holdfast.backends.postgres.channels.LOCK_TRIES", 1)
    transaction.execute(EFFECT)
    await bus.finalize(jobs[0], success=True, connection=transaction)
    assert await backend.leases.completions(jobs[:2]) == [Completion.OPEN, Completion.NONE]
    await backend.advance(LEASE)
    reading = await backend.lifecycle.due(100)
    assert len(reading.due) == 4
    assert (await soon(abandon(backend, 60 * MINUTE))).abandoned == 3
    assert sorted(ids(await soon(claim(backend)))) == ["e-1", "e-2", "e-3"]
    assert await state(backend, "e-0") is State.LEASED
    await soon(publish(backend, "later"))
    await soon(subscribe(backend, max_attempts=9))
    with pytest.raises(holdfast.Unavailable, match="open transaction that completes a job"):
        await soon(subscribe(backend, max_depth=9))
    with pytest.raises(holdfast.Unavailable, match="transaction that is still open"):
        await soon(backend.leases.requeue(CHANNEL, CONSUMER, jobs[0].id))
    with pytest.raises(holdfast.InvalidInput, match="another transaction"):  # or it would wait for that
        await soon(run(jobs[0], boom))
    transaction.commit() if commits else transaction.rollback()
    assert await backend.leases.completions(jobs[:1]) == [Completion.DONE if commits else Completion.NONE]
    assert (await abandon(backend, MINUTE)).abandoned == (0 if commits else 1)
    assert (effects(sql), await state(backend, "e-0")) == ((1, State.DONE) if commits else (0, State.READY))


async def test_a_crash_loop_beside_an_open_completion_is_buried_without_it(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    jobs = await polled(bus, 3, max_abandonments=1)
    await bus.finalize(jobs[0], success=True, connection=transaction)
    assert (await soon(abandon(backend))).buried == 2
    transaction.rollback()
    assert (await abandon(backend)).buried == 1


async def test_beside_an_open_completion_a_bounded_channel_takes_events_and_a_key_goes_on_after_it(
    bus: Bus, backend: PostgresBackend, transaction: Sql
) -> None:
    [job] = await polled(bus, 3, ordered=True, max_depth=4)
    await bus.finalize(job, success=True, connection=transaction)
    await soon(publish(backend, "e-3", key="k"))
    with pytest.raises(holdfast.Overloaded):
        await soon(publish(backend, "too many"))
    assert await soon(backend.leases.cancel(CHANNEL, "default", "e-3", CONSUMER)) == 1
    await soon(publish(backend, "e-4", key="k"))
    assert await soon(claim(backend)) == [], "the key is held until the commit"
    transaction.commit()
    await publish(backend, "there is room")
    assert sorted(ids(await claim(backend))) == ["e-1", "there is room"]


# on the caller's connection

Work = Callable[[Bus, Job, str], Awaitable[None]]


async def with_psycopg(bus: Bus, job: Job, url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(EFFECT)
        await bus.finalize(job, success=True, connection=connection)


async def with_async_psycopg(bus: Bus, job: Job, url: str) -> None:
    async with await AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        await connection.execute(EFFECT)
        await bus.finalize(job, success=True, connection=connection)


async def with_sqlalchemy(bus: Bus, job: Job, url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        session.execute(sqlalchemy.text(EFFECT))
        inside = session.connection().connection.driver_connection
        await bus.finalize(job, success=True, connection=inside)


async def with_async_sqlalchemy(bus: Bus, job: Job, url: str) -> None:
    engine = create_async_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
    async with AsyncSession(engine) as session, session.begin():
        await session.execute(sqlalchemy.text(EFFECT))
        inside = (await (await session.connection()).get_raw_connection()).driver_connection
        await bus.finalize(job, success=True, connection=inside)


async def with_django(bus: Bus, job: Job, url: str) -> None:
    def work(loop: asyncio.AbstractEventLoop) -> None:
        with closing(connections["default"]), transaction.atomic():
            connections["default"].cursor().execute(EFFECT)
            inside = connections["default"].connection
            call = bus.finalize(job, success=True, connection=inside)
            asyncio.run_coroutine_threadsafe(call, loop).result(SOON)

    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    default = {"ENGINE": "django.db.backends.postgresql"} | {
        name: parts[part] for name, part in names.items()
    }
    if not settings.configured:
        settings.configure(DATABASES={"default": default})
        django.setup()
    connections.settings["default"].update(default)
    await asyncio.to_thread(work, asyncio.get_running_loop())


@pytest.mark.parametrize(
    "work", [with_psycopg, with_async_psycopg, with_sqlalchemy, with_async_sqlalchemy, with_django]
)
async def test_a_completion_joins_the_callers_transaction(
    bus: Bus, backend: PostgresBackend, database: str, sql: Sql, jobs: list[Job], work: Work
) -> None:
    await work(bus, jobs[0], database)
    assert (effects(sql), await state(backend, "e-0")) == (1, State.DONE)
    await backend.leases.requeue(CHANNEL, CONSUMER, jobs[1].id)
    with pytest.raises(holdfast.LeaseLost):
        await work(bus, jobs[1], database)
    assert (effects(sql), await state(backend, "e-1")) == (1, State.READY)


async def test_a_lost_lease_makes_a_commit_impossible(
    bus: Bus,
    backend: PostgresBackend,
    sql: Sql,
    transaction: Sql,
    jobs: list[Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where it is lost just before the statement, and where the caller goes on as if nothing was."""
    row = Sessions.row

    async def then_lost(self: Sessions, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        found = await row(self, name, **parameters)
        if name == "prepare_completion":
            assert (await abandon(backend)).abandoned == 4
        return found

    monkeypatch.setattr(Sessions, "row", then_lost)
    transaction.execute(EFFECT)
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(jobs[0], success=True, connection=transaction)
    transaction.commit()
    assert (effects(sql), await states(backend)) == (0, {State.READY: 4})


async def test_a_connection_in_autocommit_mode_completes_at_once(
    bus: Bus, backend: PostgresBackend, sql: Sql, jobs: list[Job]
) -> None:
    await bus.finalize(jobs[0], success=True, connection=sql)
    assert await state(backend, "e-0") is State.DONE
    with pytest.raises(holdfast.LeaseLost):
        await bus.finalize(jobs[0], success=True, connection=sql)


async def test_a_transaction_with_one_snapshot_is_refused(bus: Bus, database: str, jobs: list[Job]) -> None:
    """As for a publish: the snapshot may be older than what has to be looked at."""
    async with await AsyncConnection.connect(database) as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        with pytest.raises(holdfast.InvalidInput, match="READ COMMITTED"):
            await bus.finalize(jobs[0], success=True, connection=connection)
    await bus.finalize(jobs[0], success=True)


async def test_what_is_no_connection_to_the_jobs_store_is_refused(
    bus: Bus,
    new_database: Callable[[], str],
    admin: psycopg.Connection,
    database: str,
    jobs: list[Job],
    blank: str,
) -> None:
    with pytest.raises(holdfast.InvalidInput, match="psycopg 3: with SQLAlchemy"):
        await bus.finalize(jobs[0], success=True, connection=object())
    with pytest.raises(holdfast.InvalidInput, match="success=True"):
        await bus.finalize(jobs[0], success=False, connection=admin)
    other = new_database()
    async with Bus([PostgresBackend(other)]) as same:
        [twin, *_] = await polled(same, 4)
        assert (twin.id, twin.token) == (jobs[0].id, jobs[0].token)
        with (
            psycopg.connect(other) as connection,
            pytest.raises(holdfast.InvalidInput, match="of this database"),
        ):
            await bus.finalize(jobs[0], success=True, connection=connection)
        await same.finalize(twin, success=True)
    with psycopg.connect(blank) as connection, pytest.raises(holdfast.InvalidInput, match="without this"):
        await bus.finalize(jobs[0], success=True, connection=connection)
    await bus.finalize(jobs[0], success=True)


@pytest.fixture
def pooler(database: str) -> Iterator[PgBouncer]:
    need_pgbouncer()
    with PgBouncer(database, size=2) as started:
        yield started


async def test_through_a_pooler_in_transaction_mode(pooler: PgBouncer, sql: Sql) -> None:
    """With more handlers than the pooler has connections, and none that keeps anything between them."""
    async with Bus([PostgresBackend(pooler.url)]) as bus:
        jobs = await polled(bus, 30)

        async def handle(job: Job) -> None:
            async with in_block(job) as execute:
                await execute(EFFECT)

        def work(job: Job) -> None:
            with job.transaction() as connection:
                connection.execute(EFFECT)

        await soon(
            asyncio.gather(*map(handle, jobs[:15]), *(asyncio.to_thread(work, job) for job in jobs[15:]))
        )
        assert (effects(sql), await bus.poll(CHANNEL, CONSUMER)) == (30, [])
        found = await bus.find_jobs(CHANNEL, "e-29")
    assert [each.state for each in found] == [State.DONE]


@pytest.mark.parametrize("ends", [True, False])
async def test_an_extension_waits_for_a_completion_that_is_over_soon(
    backend: PostgresBackend, transaction: Sql, sql: Sql, ends: bool
) -> None:
    """Only one in somebody's own transaction may take long: of any other the answer is known in a moment."""
    await subscribe(backend)
    await publish(backend, "a")
    [job] = await claim(backend)
    assert await backend.leases.retry([Retry(job, None)]) == [True]
    [job] = await claim(backend)  # now it has a row of its own
    end = {
        "channel": CHANNEL,
        "consumer": CONSUMER,
        "tokens": [job.token],
        "counts": [1],
        "seqs": [int(job.id)],
    }
    assert transaction.execute(QUERIES["complete"], end).fetchall() == []
    extending = asyncio.create_task(backend.leases.extend([job], MINUTE))
    await waiting(sql)
    transaction.commit() if ends else transaction.rollback()
    assert await soon(extending) == [not ends]
    assert await state(backend, "a") is (State.DONE if ends else State.LEASED)


async def test_an_extension_that_waits_holds_no_later_job(
    backend: PostgresBackend, transaction: Sql, sql: Sql
) -> None:
    """Whoever ends several jobs locks them in their order, and would wait for it in turn."""
    await subscribe(backend)
    await publish(backend, "a", "b")
    assert await backend.leases.retry([Retry(job, None) for job in await claim(backend)]) == [True, True]
    jobs = await claim(backend)  # now they have rows of their own
    lock = "SELECT FROM holdfast.jobs WHERE id = %s FOR UPDATE NOWAIT"
    assert transaction.execute(lock, [int(jobs[0].id)]).rowcount == 1
    extending = asyncio.create_task(backend.leases.extend(jobs, MINUTE))
    await waiting(sql)
    assert transaction.execute(lock, [int(jobs[1].id)]).rowcount == 1
    transaction.rollback()
    assert await soon(extending) == [True, True]
