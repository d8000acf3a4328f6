"""A session: one command's time with its stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from holdfast.bus.client import Bus
from holdfast.bus.partitions import Partition
from holdfast.cli.options import ConfigFile, Urls, flat
from holdfast.contracts import Backend
from holdfast.model.errors import NotFound
from holdfast.wiring import connect

T = TypeVar("T")
Ask = Callable[[Backend], Awaitable[T]]


def with_bus(urls: Urls, config: ConfigFile, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Open the bus, do the work, close it. Like every bus, it takes a step of the lifecycle when it opens."""

    async def session() -> T:
        async with connect(flat(urls), config=config) as bus:
            return await work(bus)

    return asyncio.run(session())


def look(urls: Urls, config: ConfigFile, ask: Callable[[Partition], Awaitable[T]]) -> list[T]:
    """Ask every partition, in order, without a step of the lifecycle: to look changes nothing."""

    async def session() -> list[T]:
        bus = connect(flat(urls), config=config)
        try:
            return [await ask(partition) for partition in bus.partitions.all]
        finally:
            await bus.close()

    return asyncio.run(session())


def look_up(urls: Urls, config: ConfigFile, ask: Ask[T]) -> list[T]:
    """What the stores know of something; `NotFound` when none knows it."""

    async def answer(partition: Partition) -> T | NotFound:
        try:
            return await ask(await opened(partition))
        except NotFound as error:
            return error

    answers = look(urls, config, answer)
    found = [each for each in answers if not isinstance(each, NotFound)]
    for each in answers:
        if isinstance(each, NotFound) and not found:
            raise each
    return found


async def opened(partition: Partition) -> Backend:
    """The partition's store, opened; whoever made the partition closes it."""
    await partition.backend.open()
    partition.opened = True
    return partition.backend


async def stores(bus: Bus) -> list[Backend]:
    """The store of every partition of an open bus; one that does not answer raises `Unavailable`."""
    return [(await bus.partitions.ready(partition)).backend for partition in bus.partitions.all]


def name_of(partition: Partition) -> str:
    """A store as messages call it: without user and password."""
    parts = urlsplit(partition.backend.url)
    return f"{parts.hostname or 'localhost'}{f':{parts.port}' if parts.port else ''}{parts.path}"
