"""Statements on a connection of the caller's, as part of the transaction that it is in."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import translate
from holdfast.model.errors import InvalidInput


async def row(connection: Any, name: str, parameters: dict[str, Any], url: str) -> tuple[Any, ...]:
    """Run a named query and return its one row. `url` is the store's, for errors."""
    try:
        if isinstance(connection, psycopg.AsyncConnection):
            cursor = psycopg.AsyncCursor(connection, row_factory=tuple_row)
            cursor.format = psycopg.pq.Format.BINARY
            await cursor.execute(QUERIES[name], parameters)
            [found] = await cursor.fetchall()
        elif isinstance(connection, psycopg.Connection):
            [found] = await asyncio.to_thread(_plain, connection, name, parameters)
        else:
            raise InvalidInput(
                f"connection is a {type(connection).__module__}.{type(connection).__name__}; pass a "
                "connection of psycopg 3: with SQLAlchemy session.connection().connection.driver_connection, "
                "with Django django.db.connection.connection"
            )
    except (psycopg.errors.UndefinedFunction, psycopg.errors.InvalidSchemaName) as error:
        raise InvalidInput(f"connection is to a database without this store: {error}") from error
    except (psycopg.Error, UnicodeError) as error:
        raise translate(error, url) from error
    return tuple(found)


def _plain(connection: psycopg.Connection[Any], name: str, parameters: dict[str, Any]) -> list[Any]:
    # Not connection.cursor(): Django's makes cursors that put parameters into the text, and know no binary.
    cursor = psycopg.Cursor(connection, row_factory=tuple_row)
    cursor.format = psycopg.pq.Format.BINARY
    return cursor.execute(QUERIES[name], parameters).fetchall()
