"""Sessions: pooled connections to one PostgreSQL, with our settings and our errors."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import psycopg
from psycopg.types.json import set_json_loads

from holdfast.backends.postgres.pool import Connection, Pool, hang_up
from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.errors import (
    IdConflict,
    InvalidInput,
    InvalidName,
    InvalidPolicy,
    LeaseLost,
    LockLost,
    Outdated,
    Overloaded,
    TooManyConnections,
    Unavailable,
)
from holdfast.model.redact import address

log = logging.getLogger(__name__)

PATIENCE = 8.0
# Some functions wait for no lock longer than this, since others wait for what they hold already. They are
# tried again.
LOCK_WAIT = "500ms"
LOCK_TRIES = 20
_LOCK_PAUSE = 0.1
# A refused connection has no SQLSTATE, only words.
_LIMITS = {
    "sorry, too many clients already": "max_connections",
    "remaining connection slots are reserved": "max_connections without those it keeps for superusers",
    "too many connections for role": "that of ALTER ROLE … CONNECTION LIMIT",
    "too many connections for database": "that of ALTER DATABASE … CONNECTION LIMIT",
    "no more connections allowed": "PgBouncer's max_client_conn",
}


class Session:
    """Runs named queries on pooled connections and speaks the one error tree."""

    def __init__(self, url: str, size: int = 4) -> None:
        self.url = url
        self._pool = Pool(url, size, self._configure, self._crowded, self._hear)
        self._recognised = False
        self._listeners: set[Callable[[str | None], None]] = set()

    async def open(self) -> None:
        """Connect once, so that a wrong URL is said at once."""
        self._pool.opened = True
        try:
            async with self.connection():
                return
        except BaseException as error:
            self._pool.opened = False
            if isinstance(error, psycopg.ProgrammingError):
                raise InvalidInput(f"the URL of PostgreSQL cannot be used: {error}") from None
            raise

    async def close(self) -> None:
        """Close the connections."""
        self._pool.opened = False
        await self._pool.clear()

    @asynccontextmanager
    async def connection(self, patience: float | None = None) -> AsyncIterator[Connection]:
        """A connection in autocommit mode, or in a transaction of a pooler's, for some seconds at most."""
        connection = await self._take()
        limit = asyncio.get_running_loop().call_later(patience or PATIENCE, hang_up, connection)
        try:
            if connection.through_pooler:
                async with self._transaction(connection):
                    yield connection
            else:
                yield connection
            _check_replicated(connection)
        except (psycopg.Error, UnicodeError) as error:
            raise await self._translated(error, connection) from error
        finally:
            limit.cancel()
            await self._pool.give_back(connection)

    async def rows(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named query in a transaction of its own and return all rows."""
        # Written out, not through connection(): this is the path of every single publish.
        connection = await self._take()
        # A store that hears and never answers must not hold up whoever asks others as well.
        limit = asyncio.get_running_loop().call_later(PATIENCE, hang_up, connection)
        try:
            cursor = connection.cursor(binary=True)
            if connection.through_pooler:
                async with self._transaction(connection):
                    await cursor.execute(QUERIES[name], parameters)
                    rows = await cursor.fetchall()
            else:
                await cursor.execute(QUERIES[name], parameters)
                rows = await cursor.fetchall()
            _check_replicated(connection)
            return rows
        except (psycopg.Error, UnicodeError) as error:
            raise await self._translated(error, connection) from error
        finally:
            limit.cancel()
            await self._pool.give_back(connection)

    async def through_pooler(self) -> bool:
        """Return whether connections end at a pooler, in transaction mode perhaps."""
        async with self.connection() as connection:
            return connection.through_pooler

    async def row(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a named query and return its first row."""
        rows = await self.rows(name, **parameters)
        return rows[0] if rows else None

    async def in_turn(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named query that gives way where it would wait for a lock, until it has its turn."""
        for _ in range(LOCK_TRIES - 1):
            try:
                return await self.rows(name, **parameters)
            except Unavailable as error:
                if not gave_way(error):
                    raise
                await asyncio.sleep(_LOCK_PAUSE)
        return await self.rows(name, **parameters)

    async def run(self, name: str, **parameters: Any) -> int:
        """Run a named query that returns nothing; answers how many rows it changed."""
        async with self.connection() as connection:
            return (await connection.execute(QUERIES[name], parameters)).rowcount

    async def listening(self, hear: Callable[[str | None], None]) -> bool:
        """See to it that `hear` is told of every publish from now on: its channel, or None for any of them.

        Returns False through a pooler, which passes nothing on.
        """
        self._listeners.add(hear)
        if self._pool.listens:
            return True
        async with self.connection() as connection:
            return connection.listens

    def stop_listening(self, hear: Callable[[str | None], None]) -> None:
        """Tell it nothing any more."""
        self._listeners.discard(hear)

    def _hear(self, channel: str | None) -> None:
        for hear in self._listeners:
            hear(channel)

    async def _take(self) -> Connection:
        if not self._pool.opened:
            raise Unavailable(f"{address(self.url, 5432)} is not connected; use 'async with connect(...)'")
        try:
            connection = await self._pool.take()
        except psycopg.Error as error:
            raise await self._translated(error) from error
        if connection.listens is not bool(self._listeners) and not connection.through_pooler:
            await self._set_listening(connection)
        return connection

    async def _set_listening(self, connection: Connection) -> None:
        """Every connection listens, so that whichever is idle hears; none, where nobody wants to know."""
        limit = asyncio.get_running_loop().call_later(PATIENCE, hang_up, connection)
        wanted = bool(self._listeners)
        try:
            await connection.execute(QUERIES["listen" if wanted else "unlisten"], prepare=False)
            connection.listens = wanted
        except BaseException as error:
            translated = (
                await self._translated(error, connection) if isinstance(error, psycopg.Error) else error
            )
            await self._pool.give_back(connection)
            raise translated from error
        finally:
            limit.cancel()
        if wanted:
            self._hear(None)  # what was said before is missed

    async def _configure(self, connection: Connection) -> None:
        set_json_loads(orjson.loads, connection)
        if not connection.through_pooler:
            await connection.execute(QUERIES["configure"])
            await self.recognise(connection)

    async def _crowded(self, connection: Connection) -> bool:
        """Whether the server has few connections left. Behind a pooler, that is the pooler's business."""
        if connection.through_pooler:
            return False
        row = await (await connection.execute(QUERIES["server_crowded"], prepare=False)).fetchone()
        return row is not None and row[0]

    @asynccontextmanager
    async def _transaction(self, connection: Connection) -> AsyncIterator[None]:
        """Through a pooler: a transaction with what a session would keep, on whichever server it has."""
        # Statements without parameters go together, in one round trip.
        begin = ["BEGIN ISOLATION LEVEL READ COMMITTED", QUERIES["configure_locally"]]
        if self._recognised:
            begin.append(QUERIES["renew_epoch"])
        await connection.execute("; ".join(begin))
        try:
            yield
        except psycopg.Error:
            if not connection.closed:
                await connection.execute("ROLLBACK")
            raise
        await connection.execute("COMMIT")

    async def recognise(self, connection: Connection) -> None:
        """See whether this is the server that the store knew: a promoted or restored one begins a new epoch.

        Raises psycopg's ReadOnlySqlTransaction on a standby.
        """
        changes: list[tuple[Any, ...]] = []
        # A database without our schema is migrated by whoever opens it, and recognised after that.
        with suppress(psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName):
            changes = await (await connection.execute(QUERIES["renew_epoch"], prepare=False)).fetchall()
            self._recognised = True
        for epoch, timeline in changes:
            log.warning(
                "PostgreSQL at %s is another server than before: a standby that was promoted, or a restored "
                "backup (timeline %s, epoch %s). What the one before acknowledged last may be missing; "
                "publishers may publish it again under the same ids",
                *(address(self.url, 5432), timeline, epoch),
            )

    async def _translated(
        self, error: psycopg.Error | UnicodeError, connection: Connection | None = None
    ) -> Exception:
        """The error to raise. If `connection` broke, others may have; if none could be made, others stay."""
        translated = translate(error, self.url)
        if connection is not None and isinstance(translated, Unavailable) and _of_no_use(error):
            await connection.close()  # or it would be taken again
            await self._pool.clear()
        return translated


def _check_replicated(connection: Connection) -> None:
    """Raise an error where the server was told to wait no longer for its standby: nothing is acknowledged."""
    if connection.unreplicated:
        raise psycopg.OperationalError("committed, but the wait for its standby was cut short")


def _of_no_use(error: psycopg.Error | UnicodeError) -> bool:
    """Whether the connection broke, or leads to a server that ends or takes no writes. A call that gave way,
    or found the disk full, says nothing about its connection."""
    state = getattr(error, "sqlstate", None)
    return state is None or state == "25006" or state.startswith(("08", "57P"))


def _limit_reached(message: str) -> str | None:
    """The limit of connections that a server has refused one for; None where it was something else."""
    return next((limit for words, limit in _LIMITS.items() if words in message), None)


def gave_way(error: Unavailable) -> bool:
    """Whether a call did nothing, since it had waited for a lock for as long as it may."""
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)


def translate(error: psycopg.Error | UnicodeError, url: str) -> Exception:
    """The one error tree for what psycopg and our SQL functions raise."""
    if isinstance(error, UnicodeError):
        return InvalidInput(f"{getattr(error, 'object', error)!r} is no text that a store can hold")
    state = getattr(error, "sqlstate", None)
    diag = getattr(error, "diag", None)
    message = (diag.message_primary if diag is not None else None) or str(error)
    match state:
        case "HF001":
            ids = json.loads(diag.message_detail) if diag and diag.message_detail else []
            return IdConflict(message.split(" ")[1], ids)
        case "HF002":
            return Overloaded(f"{message}; {diag.message_hint if diag else 'publish again later'}")
        case "HF003":
            return InvalidInput(message)
        case "HF004":
            return InvalidPolicy(message)
        case "HF005":
            name, token = json.loads(diag.message_detail) if diag and diag.message_detail else ("", 0)
            return LockLost(name, token)
        case "HF006":
            return Outdated(message)
        case "HF007":
            return LeaseLost([message.split(" ")[4]])
        case "25006":  # a standby, or a primary that has become one: the next connection may find another
            return Unavailable(
                f"PostgreSQL at {address(url, 5432)} takes no writes; name its primary: {message}"
            )
        case "23514" if diag is not None and diag.table_name == "channels":
            return InvalidName(message)
    if isinstance(error, psycopg.DataError) and state is None:  # psycopg itself refuses it
        return InvalidInput(f"a value cannot be passed to or from PostgreSQL: {message}")
    if isinstance(error, psycopg.OperationalError) and (limit := _limit_reached(message)):
        return TooManyConnections(
            f"PostgreSQL at {address(url, 5432)} refuses a connection: its limit, {limit}, is reached. "
            "Raise it, run fewer processes, or put PgBouncer before it. "
            f"The server says: {str(error).strip()}"
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return Unavailable(f"PostgreSQL at {address(url, 5432)} did not answer: {str(error).strip()}")
    return error
