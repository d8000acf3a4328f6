"""Connections that are given up while they are made: the server learns of it, whoever keeps the error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.backends.postgres import PostgresBackend
from holdfast.backends.postgres.pool import ALERT
from holdfast.backends.postgres.wakeups import PostgresListener


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
    listener = PostgresListener(url, ["jobs"], lambda _: None, lambda _: None)
    await server.begun.wait()
    await listener.close()
    error = await kept(listener._task)
    assert isinstance(error, asyncio.CancelledError)
    async with asyncio.timeout(20):
        await server.ended.wait()


async def test_a_connection_that_cannot_be_made_closes_no_other_one(
    backend: PostgresBackend, database: str, sql: psycopg.Connection[tuple[Any, ...]]
) -> None:
    """A server at its limit of connections still serves those that it has."""
    [(name,)] = sql.execute("SELECT current_database()").fetchall()
    with psycopg.connect(database, dbname="postgres", autocommit=True) as elsewhere:
        async with backend._session.connection() as held:
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            refused = asyncio.create_task(backend.channels.names())
            await asyncio.sleep(0)  # it has begun to connect: the one that is held comes back meanwhile
        try:
            with pytest.raises(holdfast.Unavailable):
                await refused
            assert await backend.channels.names() == []
            assert not held.closed
        finally:
            elsewhere.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
