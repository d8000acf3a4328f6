"""A session: one command's time with a bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urlsplit

from holdfast.bus.client import Bus
from holdfast.bus.partitions import Partition
from holdfast.cli.options import flat
from holdfast.contracts import Backend
from holdfast.model.errors import NotFound
from holdfast.wiring import connect

T = TypeVar("T")


def with_bus(urls: Sequence[str] | None, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Open the stores, do the work, close them."""

    async def session() -> T:
        async with connect(flat(urls)) as bus:
            return await work(bus)

    return asyncio.run(session())


async def stores(bus: Bus) -> list[Backend]:
    """The backend of every partition; one that does not answer raises `Unavailable`."""
    return [(await bus.partitions.ready(partition)).backend for partition in bus.partitions.all]


async def ask_all(bus: Bus, ask: Callable[[Backend], Awaitable[T]]) -> list[T]:
    """The answers of every store that knows what is asked for; `NotFound` when none does."""
    answers, missing = [], []
    for store in await stores(bus):
        try:
            answers.append(await ask(store))
        except NotFound as error:
            missing.append(error)
    if not answers:
        raise missing[0]
    return answers


def name_of(partition: Partition) -> str:
    """A store as messages call it: without user and password."""
    parts = urlsplit(partition.backend.url)
    return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"
