"""A durable server of its own for the crash tests, which kill it, and a rig for each test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from rig import HERE, Rig

import holdfast
from holdfast.embedded import Postgres

_numbers = count(1)


@pytest.fixture(scope="session")
def durable() -> Iterator[Postgres]:
    """PostgreSQL with fsync on. Whoever kills it starts it again."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def witnessed(durable: Postgres) -> str:
    """A template: migrated, and under the eyes of the rig's witness."""
    url = durable.create_database("witnessed")
    with holdfast.connect_sync(url):
        pass
    with psycopg.connect(url) as connection:
        connection.execute((HERE / "witness.sql").read_text())
    return "witnessed"


@pytest.fixture
async def rig(durable: Postgres, witnessed: str, tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(durable.create_database(f"crash_{next(_numbers)}", template=witnessed), tmp_path)
    yield made
    await asyncio.to_thread(made.close)
