"""Sessions: pooled connections to one PostgreSQL, with our settings and our errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import psycopg
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from holdfast.backends.postgres.queries import QUERIES
from holdfast.model.errors import (
    HoldfastError,
    IdConflict,
    InvalidInput,
    InvalidName,
    InvalidPolicy,
    Overloaded,
    Unavailable,
)

Connection = psycopg.AsyncConnection[tuple[Any, ...]]

# Every statement of ours walks an index in order, whatever the statistics say at the moment: the tables go
# from empty to full and back within minutes. So that is planned once, and not again for every call.
_SETTINGS = """
    SET application_name = 'holdfast'; SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
    SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan; SET timezone = 'UTC';
    SET idle_in_transaction_session_timeout = '60s'
"""


class Session:
    """A pool of connections that runs named queries and speaks the one error tree."""

    def __init__(self, url: str, size: int = 4, timeout: float = 5.0) -> None:
        self.url, self.size, self.timeout = url, size, timeout
        self._pool: AsyncConnectionPool[Connection] | None = None

    async def open(self) -> None:
        """Connect once, so that a wrong URL is said at once."""
        self._pool = AsyncConnectionPool(
            self.url,
            min_size=1,
            max_size=self.size,
            timeout=self.timeout,
            open=False,
            configure=_configure,
            kwargs={"autocommit": True, "prepare_threshold": 1, "connect_timeout": 5},
            reconnect_timeout=0,  # our callers retry; a pool that gave up would stay broken
        )
        try:
            # A pool hides why it cannot connect; a plain connection says it.
            await (await psycopg.AsyncConnection.connect(self.url, connect_timeout=5)).close()
        except psycopg.Error as error:
            self._pool = None
            if isinstance(error, psycopg.ProgrammingError) and error.sqlstate is None:
                raise InvalidInput(f"the URL of PostgreSQL cannot be used: {error}") from None
            raise translate(error, self.url) from error
        await self._pool.open()

    async def close(self) -> None:
        """Give the connections back."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection of the pool in autocommit mode."""
        connection = await self._take()
        try:
            yield connection
        except psycopg.Error as error:
            raise await self._translated(error) from error
        finally:
            await self._opened().putconn(connection)

    async def rows(self, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run a named query in a transaction of its own and return all rows."""
        # Written out, not through connection(): this is the path of every single publish.
        connection = await self._take()
        try:
            cursor = connection.cursor(binary=True)
            await cursor.execute(QUERIES[name], parameters)
            return await cursor.fetchall()
        except psycopg.Error as error:
            raise await self._translated(error) from error
        finally:
            await self._opened().putconn(connection)

    async def row(self, name: str, **parameters: Any) -> tuple[Any, ...] | None:
        """Run a named query and return its first row."""
        rows = await self.rows(name, **parameters)
        return rows[0] if rows else None

    async def run(self, name: str, **parameters: Any) -> int:
        """Run a named query that returns nothing; answers how many rows it changed."""
        async with self.connection() as connection:
            return (await connection.execute(QUERIES[name], parameters)).rowcount

    def _opened(self) -> AsyncConnectionPool[Connection]:
        if self._pool is None:
            raise Unavailable(f"{redacted(self.url)} is not connected; use 'async with connect(...)'")
        return self._pool

    async def _take(self) -> Connection:
        try:
            return await self._opened().getconn()
        except (psycopg.Error, PoolTimeout, PoolClosed) as error:
            raise await self._translated(error) from error

    async def _translated(self, error: Exception) -> Exception:
        translated = translate(error, self.url)
        if isinstance(translated, Unavailable) and self._pool is not None and not self._pool.closed:
            await self._pool.check()  # a restarted server leaves broken connections behind
        return translated


async def _configure(connection: Connection) -> None:
    set_json_loads(orjson.loads, connection)
    await connection.execute(_SETTINGS)


def translate(error: Exception, url: str) -> HoldfastError | Exception:
    """The one error tree for what psycopg and our SQL functions raise."""
    state = getattr(error, "sqlstate", None)
    diag = getattr(error, "diag", None)
    message = (diag.message_primary if diag is not None else None) or str(error)
    match state:
        case "HF001":
            ids = json.loads(diag.message_detail) if diag and diag.message_detail else []
            return IdConflict(message.split(" ")[1], ids)
        case "HF002":
            return Overloaded(f"{message}; publish again once it has caught up")
        case "HF003":
            return InvalidInput(message)
        case "HF004":
            return InvalidPolicy(message)
        case "23514" if diag is not None and diag.table_name == "channels":
            return InvalidName(message)
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | PoolTimeout | PoolClosed):
        return Unavailable(f"PostgreSQL at {redacted(url)} did not answer: {str(error).strip()}")
    return error


def redacted(url: str) -> str:
    """The URL without its password, for messages and logs."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        return "the given URL"
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
