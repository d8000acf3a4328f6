"""A bus on an empty store, of one kind or of each, or on two stores; and the service on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

import holdfast
from holdfast.deadletters import DeadLetters, Operations, Runner


@pytest.fixture
async def bus(database: str) -> AsyncIterator[holdfast.Bus]:
    async with holdfast.connect(database) as opened:
        yield opened


@pytest.fixture
async def two(new_database: Callable[[], str]) -> AsyncIterator[holdfast.Bus]:
    """A bus on two stores."""
    async with holdfast.connect([new_database(), new_database()]) as opened:
        yield opened


@pytest.fixture(params=["database", "empty_redis", "empty_nats"], ids=["postgres", "redis", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    """An empty store of each kind."""
    address: str = request.getfixturevalue(request.param)
    return address


@pytest.fixture
async def each(url: str) -> AsyncIterator[holdfast.Bus]:
    """A bus on an empty store of each kind."""
    async with holdfast.connect(url) as opened:
        yield opened


@pytest.fixture
def letters(bus: holdfast.Bus) -> DeadLetters:
    return DeadLetters(bus)


@pytest.fixture
def runner(letters: DeadLetters) -> Runner:
    """Runs operations in chunks of three."""
    return Runner(Operations(letters), "tester", chunk=3)
