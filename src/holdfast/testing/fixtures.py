"""Fixtures for pytest: `bus` and `clock` on an embedded PostgreSQL, a fresh database for each test.

The asynchronous ones need pytest-asyncio; `holdfast_url` and `sync_bus` do not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
import pytest_asyncio

from holdfast import failpoints, wiring
from holdfast.bus.client import Bus
from holdfast.bus.sync import SyncBus
from holdfast.embedded import Postgres
from holdfast.testing.drain import Clock

_numbers = count(1)


@pytest.fixture(scope="session")
def holdfast_server() -> Iterator[Postgres]:
    """A real PostgreSQL for the session. It does not wait for the disk: no test here cuts the power."""
    with Postgres(settings={"fsync": "off", "full_page_writes": "off"}) as server:
        yield server


@pytest.fixture
def holdfast_url(holdfast_server: Postgres) -> str:
    """The URL of an empty store of this test's own."""
    return holdfast_server.create_database(f"holdfast_test_{next(_numbers)}")


@pytest_asyncio.fixture
async def bus(holdfast_url: str) -> AsyncIterator[Bus]:
    """An open bus on it."""
    async with wiring.connect(holdfast_url) as opened:
        yield opened


@pytest.fixture
def sync_bus(holdfast_url: str) -> Iterator[SyncBus]:
    """The same without await."""
    with wiring.connect_sync(holdfast_url) as opened:
        yield opened


@pytest.fixture
def clock(bus: Bus) -> Clock:
    """The store's clock."""
    return Clock(bus)


@pytest.fixture
def failing() -> Iterator[type[failpoints.FailpointError]]:
    """For tests that activate failpoints: all are off again afterwards. Yields what `raise` raises."""
    yield failpoints.FailpointError
    failpoints.clear()
