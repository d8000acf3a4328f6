"""Connections that are given up while they are made: the server learns of it, whoever keeps the error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.pool import ALERT
from holdfast.backends.postgres.session import Session
from holdfast.backends.postgres.wakeups import PostgresListener
from kit import CHANNEL, CONSUMER, publish, subscribe, until

Sql = psycopg.Connection[tuple[Any, ...]]


class Silent:
    """A server that lets everybody in, hears them, and never says a word: one that waits for a password."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read(1)
        self.begun.set()
        while await reader.read(1000):
            continue
        self.ended.set()
        writer.close()


@pytest.fixture
async def silent() -> AsyncIterator[tuple[Silent, str]]:
    """The server, and the URL of a database on it."""
    server = Silent()
    async with await asyncio.start_server(server.serve, "127.0.0.1") as listening:
        port = listening.sockets[0].getsockname()[1]
        yield server, f"postgresql://u:p@127.0.0.1:{port}/x?sslmode=disable&gssencmode=disable"


async def kept(working: Awaitable[None]) -> BaseException:
    """What it raises, with everything that hangs on it."""
    try:
        await working
    except BaseException as error:
        return error
    raise AssertionError("it was to fail")


async def cancelled(backend: PostgresBackend, server: Silent) -> None:
    opening = asyncio.create_task(backend.open())
    await server.begun.wait()
    opening.cancel()
    await opening


async def overdue(backend: PostgresBackend, server: Silent) -> None:
    async with asyncio.timeout(None) as limit:
        opening = asyncio.create_task(backend.open())
        await server.begun.wait()
        limit.reschedule(asyncio.get_running_loop().time())
        await opening


async def timed_out(backend: PostgresBackend, server: Silent) -> None:
    await backend.open()  # until its own patience ends


@pytest.mark.parametrize(
    ("give_up", "raised"),
    [
        (cancelled, asyncio.CancelledError),
        (overdue, TimeoutError),
        (timed_out, holdfast.Unavailable),
    ],
)
async def test_a_connection_that_is_given_up_while_it_is_made_is_closed_although_the_error_is_kept(
    silent: tuple[Silent, str],
    give_up: Callable[[PostgresBackend, Silent], Awaitable[None]],
    raised: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ALERT, "connect_timeout", 2)
    server, url = silent
    error = await kept(give_up(PostgresBackend(url), server))
    assert isinstance(error, raised)
    async with asyncio.timeout(20):
        await server.ended.wait()
    assert error.__traceback__ is not None, "the error itself is whole"


async def test_a_listener_that_is_closed_while_it_connects_leaves_no_connection(
    silent: tuple[Silent, str],
) -> None:
    server, url = silent
    session = Session(url)
    session._pool.opened = True
    listener = PostgresListener(session, ["jobs"], lambda _: None, lambda _: None, lambda *_: None)
    await server.begun.wait()
    await listener.close()
    error = await kept(listener._task)
    assert isinstance(error, asyncio.CancelledError)
    async with asyncio.timeout(20):
        await server.ended.wait()


async def test_where_no_connection_can_be_made_those_that_are_there_serve_all(
    backend: PostgresBackend, database: str, sql: Sql
) -> None:
    [(name,)] = sql.execute("SELECT current_database()").fetchall()
    with psycopg.connect(database, dbname="postgres", autocommit=True) as elsewhere:
        async with backend._session.connection() as held:
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            waiting = [asyncio.create_task(backend.channels.names()) for _ in range(20)]

            async def refused() -> bool:
                return backend._session._pool._refusals > 0

            await until(refused)
        try:
            assert await asyncio.gather(*waiting) == [[]] * 20
            assert not held.closed
        finally:
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


async def test_a_call_that_gives_way_to_a_lock_closes_no_connection(
    backend: PostgresBackend, transaction: Sql
) -> None:
    transaction.execute("LOCK TABLE holdfast.channels")
    async with backend._session.connection() as one:
        pass
    with pytest.raises(holdfast.Unavailable):
        async with backend._session.connection() as connection:
            await connection.execute("SET lock_timeout = '10ms'; SELECT FROM holdfast.channels")
    assert connection is one
    assert not one.closed


async def test_connections_that_are_hardly_used_are_given_back(
    backend: PostgresBackend, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.backends.postgres.pool._LOOK", 0.5)

    async def busy() -> None:
        async with backend._session.connection() as connection:
            await connection.execute("SELECT pg_sleep(0.5)")

    async def one() -> bool:
        return ours(sql) == 1

    await asyncio.gather(*(busy() for _ in range(4)))
    assert ours(sql) > 2
    await until(one)
    assert await backend.channels.names() == []


async def test_whoever_is_cancelled_at_whichever_moment_leaves_no_dirty_connection(
    backend: PostgresBackend, sql: Sql
) -> None:
    """Calls of all kinds are cancelled after ever longer times; what comes after them is not disturbed."""
    await subscribe(backend)
    calls: list[Callable[[int], Awaitable[object]]] = [
        lambda n: publish(backend, f"one-{n}"),
        lambda n: publish(backend, *(f"bulk-{n}-{i}" for i in range(200))),
        lambda n: backend.leases.claim(CHANNEL, CONSUMER, 10, "w"),
        lambda n: backend.log.read(CHANNEL, None, 10),
        lambda n: backend.channels.names(),
    ]
    for n in range(30):
        tasks = [asyncio.ensure_future(call(n)) for call in calls]
        await asyncio.wait(tasks, timeout=n / 1000)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError | list), result
        await publish(backend, f"after-{n}")
    there = [event for (event,) in sql.execute("SELECT id FROM holdfast.log").fetchall()]
    assert {f"after-{n}" for n in range(30)} <= set(there)
    bulks = Counter(each.rpartition("-")[0] for each in there if each.startswith("bulk"))
    assert set(bulks.values()) <= {200}, "a batch is whole, or not there"
    assert ours(sql) <= 8
    pool = backend._session._pool
    assert len(pool._idle) == len(pool._all), "each was given back"


def ours(sql: Sql) -> int:
    """How many connections Holdfast has."""
    [(count,)] = sql.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'holdfast'"
    ).fetchall()
    return int(count)


async def test_no_more_connections_are_made_than_the_pool_may_have(
    backend: PostgresBackend, sql: Sql
) -> None:
    """However many wait for one at the same time."""

    async def busy() -> None:
        async with backend._session.connection() as connection:
            await connection.execute("SELECT pg_sleep(0.05)")
            most.append(ours(sql))

    most = list[int]()
    await asyncio.gather(*(busy() for _ in range(60)))
    assert max(most) == 8
