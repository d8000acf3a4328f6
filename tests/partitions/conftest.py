"""Two stores under one bus: two databases, or a server of its own for the one that is to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import pytest

import holdfast
from holdfast.embedded import Postgres
from kit import in_memory

_numbers = count(1)


@pytest.fixture
def urls(new_database: Callable[[], str]) -> list[str]:
    """Two stores that live."""
    return [new_database(), new_database()]


@pytest.fixture
async def bus(urls: list[str]) -> AsyncIterator[holdfast.Bus]:
    async with holdfast.connect(urls) as opened:
        yield opened


@pytest.fixture(scope="module")
def mortal() -> Iterator[Postgres]:
    """A server that tests kill."""
    with in_memory():
        server = Postgres().start()
    yield server
    server.stop()


@pytest.fixture
async def frail(database: str, mortal: Postgres) -> AsyncIterator[list[str]]:
    """A store that lives, and one on the server that may be killed: the second one."""
    await asyncio.to_thread(mortal.start)
    url = await asyncio.to_thread(mortal.create_database, f"frail_{next(_numbers)}")
    yield [database, url]
    await asyncio.to_thread(mortal.start)
