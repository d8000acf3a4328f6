"""A real NATS for what is special to it: one server for the folder, emptied for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import nats
import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.embedded import Nats


@pytest.fixture(scope="session")
def relaxed_nats() -> Iterator[Nats]:
    """A server that never waits for a disk; tests that kill one start their own."""
    with Nats(sync_interval="2m") as server:
        yield server


@pytest.fixture
async def client(relaxed_nats: Nats) -> AsyncIterator[Client]:
    """A foreign client: plain nats-py on an empty server."""
    async with await nats.connect(relaxed_nats.url) as plain:
        for each in await plain.jetstream().streams_info():
            await plain.jetstream().delete_stream(each.config.name or "")
        yield plain


@pytest.fixture
async def backend(relaxed_nats: Nats, client: Client) -> AsyncIterator[NatsBackend]:
    """An opened backend on the empty server."""
    opened = NatsBackend(relaxed_nats.url)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def other(backend: NatsBackend) -> AsyncIterator[NatsBackend]:
    """Another process."""
    opened = backend.fork()
    await opened.open()
    yield opened
    await opened.close()
