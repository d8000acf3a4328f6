"""Handlers that complete their jobs in transactions: what the worker does after that, and under kills."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from shift import ended, holds, settled, shift

import holdfast
from holdfast import failpoints
from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.embedded import Postgres
from holdfast.model.job import JobRecord
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, LEASE, abandon, publish, record, states, subscribe, until

Sql = psycopg.Connection[tuple[Any, ...]]
Handled = Callable[[holdfast.Event, holdfast.Job], Any]
OPTIONS: dict[str, Any] = {"start": "earliest", "backoff": ["0s"], "max_attempts": 2}
WORKER = """
import holdfast

app = holdfast.App()


@app.handler("orders", "billing", start="earliest", concurrency=2)
async def bill(event, job):
    async with job.transaction() as connection:
        await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])


@app.handler("orders", "audit", start="earliest", concurrency=2)
def audit(event, job):
    with job.transaction() as connection:
        connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
"""


@pytest.fixture
def sql(database: str) -> Iterator[Sql]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE effects (id text)")
        yield connection


def effects(sql: Sql) -> list[str]:
    return [name for (name,) in sql.execute("SELECT id FROM effects ORDER BY id").fetchall()]


def handler(app: holdfast.App, *, plain: bool, after: Callable[[holdfast.Event], None]) -> None:
    """A handler with its effect in a transaction, that does something after it."""

    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
        after(event)

    def bill_plain(event: holdfast.Event, job: holdfast.Job) -> None:
        with job.transaction() as connection:
            connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
        after(event)

    app.handler(CHANNEL, CONSUMER, concurrency=31, **OPTIONS)(bill_plain if plain else bill)


@pytest.mark.parametrize("plain", [False, True])
async def test_what_is_completed_is_not_finalized_again_whatever_the_handler_does_then(
    bus: Bus, backend: Backend, sql: Sql, plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = holdfast.App()

    def after(event: holdfast.Event) -> None:
        if event.id == "e-7":
            raise ValueError("too late")

    handler(app, plain=plain, after=after)
    names = sorted(f"e-{n}" for n in range(40))
    await publish(backend, *names)
    async with shift(app, bus):
        assert await settled(backend, 40) == {State.DONE: 40}
    assert effects(sql) == names
    assert bus.counters.outcomes == {(CHANNEL, CONSUMER, "done"): 40}
    [said] = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert "is done, its transaction was committed; after that its handler raised ValueError" in said


async def test_a_handler_goes_on_after_its_commit_and_no_heartbeat_stops_it(
    bus: Bus, backend: Backend, sql: Sql
) -> None:
    app, ends = holdfast.App(), list[str]()

    @app.handler(CHANNEL, CONSUMER, start="earliest", lease="300ms", timeout="20s")
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        try:
            async with job.transaction() as connection:
                await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
                await asyncio.sleep(0.9)  # longer than a lease that nobody extends
            await asyncio.sleep(0.3)
            ends.append("well")
        except BaseException as error:
            ends.append(repr(error))
            raise

    await publish(backend, "a")
    async with shift(app, bus):
        await holds(lambda: bool(ends))
    assert (ends, effects(sql)) == (["well"], ["a"])
    found = await record(backend, "a")
    assert (found.state, found.attempts, found.abandonments) == (State.DONE, 1, 0)


async def test_an_error_in_the_block_is_a_failed_attempt(bus: Bus, backend: Backend, sql: Sql) -> None:
    app = holdfast.App()

    @app.handler(CHANNEL, CONSUMER, **OPTIONS)
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", [f"{event.id}{job.attempt}"])
            if job.attempt == 1:
                raise ValueError("no")

    await publish(backend, "a")
    async with shift(app, bus):
        found = await ended(backend, "a")
    assert (found.state, found.attempts, len(found.errors), effects(sql)) == (State.DONE, 2, 1, ["a2"])


async def test_a_completion_on_a_connection_of_the_handlers_own(
    bus: Bus, backend: Backend, sql: Sql, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Committed, rolled back, left open, and raised after each: done once it is committed, or tried again."""
    app, kept = holdfast.App(), dict[str, psycopg.AsyncConnection[Any]]()

    @app.handler(CHANNEL, CONSUMER, **OPTIONS)
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        connection = await psycopg.AsyncConnection.connect(database)
        kept[f"{event.id} {job.attempt} {job.abandonments}"] = connection
        await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
        await bus.finalize(job, success=True, connection=connection)
        if "committed" in event.id or job.attempt == 2 or job.abandonments:
            await connection.commit()
        elif "back" in event.id:
            await connection.rollback()
        if "raises" in event.id:
            raise ValueError("after it")

    done = ["committed", "committed, raises", "rolled back", "rolled back, raises"]
    await publish(backend, *done, "left open", "left open, raises")
    async with shift(app, bus):
        for name in done:
            assert (await ended(backend, name)).state is State.DONE
        await holds(lambda: sum("still open" in entry.getMessage() for entry in caplog.records) == 2)
        assert (effects(sql), await states(backend)) == (done, {State.DONE: 4, State.LEASED: 2})
        assert [(await record(backend, name)).attempts for name in done] == [1, 1, 2, 2]
        [error] = (await record(backend, "rolled back")).errors
        assert "without committing" in error["error"]
        await kept["left open 1 0"].commit()
        await kept["left open, raises 1 0"].rollback()
        await backend.advance(LEASE)
        assert (await ended(backend, "left open, raises")).abandonments == 1
    for connection in kept.values():
        await connection.close()
    assert await states(backend) == {State.DONE: 6}
    assert effects(sql) == sorted([*done, "left open", "left open, raises"])


async def test_a_shutdown_and_a_timeout_in_the_block_undo_its_effect(
    bus: Bus, backend: Backend, sql: Sql
) -> None:
    app, inside = holdfast.App(), asyncio.Event()

    @app.handler(CHANNEL, CONSUMER, timeout="300ms", **OPTIONS | {"max_attempts": 1})
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
            await connection.execute("SELECT pg_sleep(60)")

    @app.handler(CHANNEL, "audit", **OPTIONS)
    async def audit(event: holdfast.Event, job: holdfast.Job) -> None:
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
            inside.set()
            await asyncio.sleep(60)

    await publish(backend, "a")
    async with shift(app, bus, grace="1s"):
        assert (await ended(backend, "a")).reason == "max_attempts"
        await inside.wait()
    found = await record(backend, "a", consumer="audit")
    assert (found.state, found.attempts, effects(sql)) == (State.READY, 0, [])


async def test_of_an_ordered_consumer_the_next_of_a_key_follows_the_commit(
    bus: Bus, backend: Backend, sql: Sql
) -> None:
    app, began = holdfast.App(), list[str]()

    @app.handler(CHANNEL, CONSUMER, ordered=True, max_depth=100, **OPTIONS)
    async def bill(event: holdfast.Event, job: holdfast.Job) -> None:
        began.append(event.id)
        async with job.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s)", [event.id])

    names = [f"e-{n}" for n in range(8)]
    for name in names:
        await publish(backend, name, key="k")
    async with shift(app, bus, idle="10s"):
        assert await settled(backend, 8) == {State.DONE: 8}
    assert began == names
    assert sql.execute("SELECT live FROM holdfast.depths").fetchall() == [(0,)]


# kills


@pytest.fixture
def work(tmp_path: Path, database: str) -> Callable[[str], int]:
    """Runs a worker that is killed at a failpoint, and answers how it ended."""
    (tmp_path / "billing.py").write_text(WORKER)

    def run(point: str) -> int:
        command = [sys.executable, "-m", "holdfast.cli", "worker", "billing:app", "--url", database]
        environment = os.environ | {failpoints.VARIABLE: point, "HOLDFAST_URL": database}
        return subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, check=False).returncode

    return run


@pytest.mark.parametrize(
    "point",
    [
        "worker.mid_handler",
        "transaction.before_completion",
        "transaction.before_commit",
        "transaction.after_commit",
    ],
)
async def test_a_worker_that_is_killed_leaves_both_or_neither(
    bus: Bus, backend: Backend, sql: Sql, work: Callable[[str], int], point: str
) -> None:
    """Of async handlers and of those in threads; and in the end each effect is there once."""
    for consumer in (CONSUMER, "audit"):
        await subscribe(backend, consumer)
    names = [f"e-{n}" for n in range(6)]
    await publish(backend, *names)
    assert await asyncio.to_thread(work, f"{point}=kill:5") == -9

    async def gone() -> bool:
        return (
            sql.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE state LIKE 'idle in transaction%' AND datname = current_database()"
            ).fetchone()
            is None
        )

    await until(gone)
    committed = sql.execute(
        "SELECT l.id FROM holdfast.job_log j JOIN holdfast.log l USING (channel_id, epoch, seq) ORDER BY 1"
    ).fetchall()
    assert [name for (name,) in committed] == effects(sql)
    assert 0 < len(committed) < 2 * len(names)
    app = holdfast.App()
    handler(app, plain=False, after=lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPTIONS, "max_attempts", 5)

        @app.handler(CHANNEL, "audit", **OPTIONS)
        def audit(event: holdfast.Event, job: holdfast.Job) -> None:
            with job.transaction() as connection:
                connection.execute("INSERT INTO effects VALUES (%s)", [event.id])

    await abandon(backend, LEASE)
    async with shift(app, bus):
        assert await settled(backend, 6) == {State.DONE: 6}
        assert await settled(backend, 6, consumer="audit") == {State.DONE: 6}
    assert effects(sql) == sorted(2 * names)


async def reconnected(bus: Bus) -> list[JobRecord]:
    """What it says of a job, once it has left the connections of before."""
    try:
        return await bus.find_jobs(CHANNEL, "a")
    except holdfast.Unavailable:
        return []


@pytest.fixture
async def mortal() -> AsyncIterator[Postgres]:
    """A server that a test kills."""
    with Postgres(settings={"shared_buffers": "16MB"}) as server:
        yield server


async def test_a_server_that_is_killed_before_the_commit_keeps_neither(mortal: Postgres) -> None:
    def die() -> None:
        failpoints.deactivate("transaction.before_commit")
        mortal.kill()

    async with Bus([PostgresBackend(mortal.url)]) as bus:
        with psycopg.connect(mortal.url, autocommit=True) as sql:
            sql.execute("CREATE TABLE effects (id text)")
        await bus.subscribe(CHANNEL, CONSUMER)
        for name in ("a", "b"):
            await bus.publish(CHANNEL, 1, id=name)
        job, other = await bus.poll(CHANNEL, CONSUMER, limit=2)
        failpoints.activate("transaction.before_commit", die)
        with suppress(psycopg.Error):
            async with job.transaction() as connection:
                await connection.execute("INSERT INTO effects VALUES ('a')")
        mortal.restart()
        with psycopg.connect(mortal.url, autocommit=True) as sql:
            assert effects(sql) == []
            assert (await until(lambda: reconnected(bus)))[0].state is State.LEASED
            for each in (job, other):
                with each.transaction() as again:
                    again.execute("INSERT INTO effects VALUES (%s)", [each.event.id])
            assert effects(sql) == ["a", "b"]
        assert [(await bus.find_jobs(CHANNEL, name))[0].state for name in ("a", "b")] == [State.DONE] * 2
