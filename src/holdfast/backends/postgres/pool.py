"""The pool: a few connections, made when they are needed.

No background task and no waiting for a server that is away: whoever needs a connection learns at once why
there is none, and retries by its own rules.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection to the server, or to a pooler before it."""

    through_pooler = False
    """Each transaction may be on another connection of the pooler's: nothing of a session outlives one, no
    setting, prepared statement or LISTEN."""


# A server that vanished without a word is noticed in seconds, not hours.
ALERT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}


C = TypeVar("C", bound=Connection)


async def connect(url: str, kind: type[C] = Connection) -> C:  # type: ignore[assignment]
    """A new connection in autocommit mode; raises psycopg's errors."""
    try:
        connection = await kind.connect(url, autocommit=True, prepare_threshold=1, **ALERT)
    except BaseException as error:
        # The frames below hold the socket. Whoever kept the error kept the connection open, half made, and a
        # server waits a minute for a password, and a DROP DATABASE for that.
        raise error.with_traceback(None) from None
    try:
        with _impatient(connection):
            await _find_pooler(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def _find_pooler(connection: Connection) -> None:
    """See whether a pooler stands between: it tells a process number of its own, not that of the server's
    process, since it is the pooler that is asked to cancel a query."""
    cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
    if await cursor.fetchone() != (connection.info.backend_pid,):
        connection.through_pooler = True
        connection.prepare_threshold = None
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)


@contextmanager
def _impatient(connection: Connection) -> Iterator[None]:
    """A server may fall silent right after it has let us in."""
    limit = asyncio.get_running_loop().call_later(ALERT["connect_timeout"], hang_up, connection)
    try:
        yield
    finally:
        limit.cancel()


def hang_up(connection: Connection) -> None:
    """End a connection under whoever waits for it: they get an error instead of an answer."""
    if not connection.closed:
        with socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)


class Pool:
    """At most `size` connections; the one given back last is taken first."""

    def __init__(
        self,
        url: str,
        size: int,
        configure: Callable[[Connection], Awaitable[None]],
        kind: type[Connection] = Connection,
    ) -> None:
        self._url, self._configure, self._kind = url, configure, kind
        self._slots = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self.opened = False

    async def take(self) -> Connection:
        """A connection in autocommit mode; give it back in every case."""
        await self._slots.acquire()
        try:
            if self._idle:
                return self._idle.pop()
            return await self._connect()
        except BaseException:
            self._slots.release()
            raise

    async def _connect(self) -> Connection:
        connection = await connect(self._url, self._kind)
        try:
            with _impatient(connection):
                await self._configure(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def give_back(self, connection: Connection) -> None:
        """Keep it for the next one, unless something is still going on in it."""
        self._slots.release()
        if self.opened and connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            await connection.close()

    async def clear(self) -> None:
        """Drop the idle ones: a server that was restarted leaves them broken."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()
