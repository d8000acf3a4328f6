"""A backend on an empty store for each test, once for every kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.bus.client import Bus
from holdfast.contracts import Backend
from holdfast.embedded import Postgres
from holdfast.wiring import backend as connect_backend
from pooler import PgBouncer, need_pgbouncer
from stores import STORES, VARIANTS, Store


@pytest.fixture(params=[*STORES, *(pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS)])
def store(request: pytest.FixtureRequest) -> Store:
    return (STORES | VARIANTS)[request.param](request)


@pytest.fixture(scope="session")
def pooler(postgres: Postgres) -> Iterator[PgBouncer]:
    """PgBouncer before the session's PostgreSQL."""
    need_pgbouncer()
    with PgBouncer(postgres.url) as started:
        yield started


@pytest.fixture
async def backend(store: Store) -> AsyncIterator[Backend]:
    """An opened backend on an empty store."""
    opened = connect_backend(store.url, connections=8)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def bus(backend: Backend) -> AsyncIterator[Bus]:
    """A bus over the same store as `backend`."""
    async with Bus([backend.fork()]) as opened:
        yield opened
