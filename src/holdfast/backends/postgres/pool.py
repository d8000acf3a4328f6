"""The pool: one connection, and a few more for as long as they are needed.

No background task and no waiting for a server that is away: whoever needs a connection learns at once why
there is none, and retries by its own rules.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from holdfast.model.backoff import backoff_seconds

log = logging.getLogger(__name__)

_SLOW = 1.0
_WAIT = 0.02  # unless so many wait for each connection
_MANY = 2
_LOOK = 10.0
_USED = 0.1
_REFUSED = 5.0, 60.0
# A server that vanished without a word is noticed in seconds, not hours.
ALERT: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
# Bulk publishes encode their rows themselves.
_OURS = {"client_encoding": "UTF8"}


class Connection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """A connection to the server, or to a pooler before it."""

    through_pooler = False
    """Each transaction may be on another connection of the pooler's: nothing of a session outlives one, no
    setting, prepared statement or LISTEN."""
    listens = False
    """It gets notifications."""
    unreplicated = False
    """The server was told to wait no longer for its standby: only itself has committed, perhaps."""
    watched: int | None = None
    """The descriptor that the event loop watches while it is idle."""
    busy, since, taken_at = 0.0, 0.0, 0.0
    """How long it was used since when, and when it was taken last."""


C = TypeVar("C", bound=Connection)


class Servers(Generic[C]):
    """The servers of a URL, which may name several.

    One that is frozen lets everybody in and says nothing. It would cost each new connection its whole
    timeout: where others had to be waited for, the one that was right then is tried first from then on.
    """

    def __init__(self, url: str, kind: type[C]) -> None:
        self._url, self._kind, self._right = url, kind, ("", 0)

    async def connect(self) -> C:
        """A new connection in autocommit mode; raises psycopg's errors."""
        began = time.monotonic()
        try:
            connection = await self._kind.connect("", autocommit=True, prepare_threshold=1, **self._order())
        except BaseException as error:
            # The frames below hold the socket. Whoever kept the error kept the connection open, half made,
            # and a server waits a minute for a password, and a DROP DATABASE for that.
            raise error.with_traceback(None) from None
        try:
            with impatient(connection):
                await _find_pooler(connection)
        except BaseException:
            await connection.close()
            raise
        connection.since = time.monotonic()
        if connection.since - began > _SLOW:
            self._right = (connection.info.host, connection.info.port)
        return connection

    def _order(self) -> dict[str, Any]:
        """The parameters of the URL, with ours where it has none, and the right server first."""
        parameters = ALERT | {name: value for name, value in conninfo_to_dict(self._url).items() if value}
        hosts, ports = (str(parameters.get(name, "")).split(",") for name in ("host", "port"))
        ports = ports * len(hosts) if len(ports) == 1 else ports
        if len(hosts) > 1 and len(hosts) == len(ports) and "hostaddr" not in parameters:
            servers = sorted(zip(hosts, ports, strict=True), key=self._is_not_right)
            parameters["host"], parameters["port"] = (",".join(each) for each in zip(*servers, strict=True))
        return parameters | _OURS

    def _is_not_right(self, server: tuple[str, str]) -> bool:
        return (server[0], int(server[1] or 5432)) != self._right


async def _find_pooler(connection: Connection) -> None:
    """See whether a pooler stands between: it tells a process number of its own, not that of the server's
    process, since it is the pooler that is asked to cancel a query."""
    cursor = await connection.execute("SELECT pg_backend_pid()", prepare=False)
    if await cursor.fetchone() != (connection.info.backend_pid,):
        connection.through_pooler = True
        connection.prepare_threshold = None
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)


@contextmanager
def impatient(connection: Connection) -> Iterator[None]:
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
    """One connection, and up to `size` while that is not enough. The one given back last is taken first.

    A connection costs its server a process, and whoever makes it some 20 ms. So nobody makes another one
    before he has waited that long; one that is hardly used is closed; and on a server that is `crowded`, or
    lets nobody in, those that there are must do.
    """

    def __init__(
        self,
        url: str,
        size: int,
        configure: Callable[[Connection], Awaitable[None]],
        crowded: Callable[[Connection], Awaitable[bool]],
        hear: Callable[[str], None],
    ) -> None:
        self._servers, self._size = Servers(url, Connection), size
        self._configure, self._crowded, self._hear = configure, crowded, hear
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._making = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._refusals, self._refused_until = 0, 0.0
        self._look: asyncio.TimerHandle | None = None
        self.opened = False

    @property
    def listens(self) -> bool:
        """Whether notifications reach us."""
        return any(connection.listens for connection in self._all)

    async def take(self) -> Connection:
        """A connection in autocommit mode; give it back in every case."""
        connection = self._idle.pop() if self._idle else await self._wait_or_connect()
        self._unwatch(connection)
        connection.taken_at, connection.unreplicated = time.monotonic(), False
        return connection

    async def give_back(self, connection: Connection) -> None:
        """Hand it to the next one, unless something is still going on in it."""
        connection.busy += time.monotonic() - connection.taken_at
        if not self.opened or connection.info.transaction_status is not TransactionStatus.IDLE:
            self._drop(connection)
        elif not self._hand_over(connection):
            self._keep(connection)

    async def clear(self) -> None:
        """Drop the idle ones: a server that was restarted leaves them broken."""
        for connection in self._idle.copy():
            self._drop(connection)

    async def _wait_or_connect(self) -> Connection:
        """A connection that somebody gives back soon, or else a new one, if it can be made."""
        while self._all or self._making:
            if self._idle:
                return self._idle.pop()
            hurry = self._may_grow and self._all and self._waiters >= _MANY * len(self._all)
            if not hurry and (connection := await self._given_back(_WAIT if self._may_grow else None)):
                return connection
            if self._may_grow and self._all and (connection := await self._connect_another()):
                return connection
        return await self._connect()

    @property
    def _waiters(self) -> int:
        return sum(not each.done() for each in self._waiting)

    @property
    def _may_grow(self) -> bool:
        return len(self._all) + self._making < self._size and time.monotonic() >= self._refused_until

    async def _connect_another(self) -> Connection | None:
        """One more connection; None where those that there are must do, for a while."""
        try:
            connection = await self._connect(another=True)
        except psycopg.Error as error:
            if not self._all:
                raise
            log.info("no further connection is made, those that there are must do: %s", error)
            self._refusals += 1
            self._refused_until = time.monotonic() + backoff_seconds(self._refusals, *_REFUSED)
            return None
        self._refusals = 0
        return connection

    async def _given_back(self, seconds: float | None) -> Connection | None:
        """The next connection that is given back; None after so many seconds, or where one was lost."""
        loop = asyncio.get_running_loop()
        given: asyncio.Future[Connection | None] = loop.create_future()
        self._waiting.append(given)
        limit = None if seconds is None else loop.call_later(seconds, _give_nothing, given)
        try:
            return await given
        except asyncio.CancelledError:
            # It may have been given at the same moment.
            came = given.done() and not given.cancelled() and given.exception() is None
            if came and (connection := given.result()):
                await self.give_back(connection)
            raise
        finally:
            if limit is not None:
                limit.cancel()

    def _hand_over(self, given: Connection | None) -> bool:
        """Give a connection, or the place of one that was lost, to who has waited longest."""
        while self._waiting:
            if not (first := self._waiting.popleft()).done():
                first.set_result(given)
                return True
        return False

    async def _connect(self, *, another: bool = False) -> Connection:
        self._making += 1
        try:
            connection = await self._connected(another)
        except BaseException as error:
            self._making -= 1
            self._not_connected(error)
            raise
        self._making -= 1
        self._all.add(connection)
        return connection

    async def _connected(self, another: bool) -> Connection:
        connection = await self._servers.connect()
        try:
            with impatient(connection):
                if another and await self._crowded(connection):
                    raise psycopg.OperationalError("the server has few connections left")
                await self._configure(connection)
        except BaseException:
            await connection.close()
            raise
        connection.add_notify_handler(lambda notice: self._hear(notice.payload))
        connection.add_notice_handler(partial(_note_unreplicated, connection))
        return connection

    def _not_connected(self, error: BaseException) -> None:
        """Nobody who waits for a connection may wait for ever: all learn why there is none."""
        if self._all or self._making:
            return
        if not isinstance(error, Exception):  # who made it was cancelled: the next one may
            self._hand_over(None)
            return
        while self._waiting:
            if not (waiting := self._waiting.popleft()).done():
                waiting.set_exception(error)

    def _drop(self, connection: Connection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
            self._unwatch(connection)
        self._all.discard(connection)
        connection.pgconn.finish()
        self._hand_over(None)

    def _keep(self, connection: Connection) -> None:
        self._idle.append(connection)
        if connection.listens:
            self._watch(connection)
        if len(self._all) > 1 and self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK, self._shrink)

    def _watch(self, connection: Connection) -> None:
        """Read what the server says to an idle connection: a notification, or its end."""
        connection.watched = connection.fileno()
        asyncio.get_running_loop().add_reader(connection.watched, self._read, connection)
        self._notices(connection)  # those that came with the last result

    def _unwatch(self, connection: Connection) -> None:
        if connection.watched is not None:
            asyncio.get_running_loop().remove_reader(connection.watched)
            connection.watched = None

    def _read(self, connection: Connection) -> None:
        try:
            connection.pgconn.consume_input()
            self._notices(connection)
        except psycopg.Error as error:
            log.info("an idle connection to PostgreSQL ended: %s", error)
            self._drop(connection)

    def _notices(self, connection: Connection) -> None:
        while notice := connection.pgconn.notifies():
            self._hear(notice.extra.decode())

    def _shrink(self) -> None:
        """Close idle connections that were hardly used since the last look. One stays."""
        self._look, now = None, time.monotonic()
        for connection in self._idle.copy():
            age = now - connection.since
            if age < _LOOK:
                continue
            if len(self._all) > 1 and connection.busy < _USED * age:
                self._drop(connection)
            connection.since, connection.busy = now, 0.0
        if len(self._all) > 1:
            self._look = asyncio.get_running_loop().call_later(_LOOK, self._shrink)


def _note_unreplicated(connection: Connection, notice: errors.Diagnostic) -> None:
    if notice.source_function == "SyncRepWaitForLSN":  # its words depend on the server's language
        connection.unreplicated = True


def _give_nothing(given: asyncio.Future[Connection | None]) -> None:
    if not given.done():
        given.set_result(None)
