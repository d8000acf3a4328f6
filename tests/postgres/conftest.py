"""What is special to PostgreSQL: a backend on this test's database, and plain connections beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
from standby import Pair, paired

from holdfast.backends.postgres import PostgresBackend
from holdfast.bus.client import Bus
from holdfast.embedded import Postgres


@pytest.fixture
async def backend(database: str) -> AsyncIterator[PostgresBackend]:
    """An opened backend on an empty database."""
    opened = PostgresBackend(database, connections=8)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def bus(database: str) -> AsyncIterator[Bus]:
    """A bus on the same database."""
    async with Bus([PostgresBackend(database)]) as opened:
        yield opened


@pytest.fixture
def sql(database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of somebody who knows nothing of Holdfast, each statement committed by itself."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def transaction(database: str) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of somebody whose transaction stays open until the test ends it."""
    with psycopg.connect(database) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
async def pair(postgres: Postgres, database: str) -> AsyncIterator[Pair]:
    """This test's database on the session's server and on a standby of it, which may take over."""
    async with paired(postgres, database) as made:
        yield made
