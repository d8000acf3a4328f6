"""A bus and a backend on a fresh database of the session's server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.wiring import backend as connect_backend


@pytest.fixture
async def bus(database: str) -> AsyncIterator[Bus]:
    """The bus that the app under test runs on."""
    async with Bus([connect_backend(database, connections=8)]) as opened:
        yield opened


@pytest.fixture
async def backend(database: str) -> AsyncIterator[Backend]:
    """A backend of the test's own, to look and to meddle with."""
    opened = connect_backend(database, connections=2)
    await opened.open()
    yield opened
    await opened.close()
