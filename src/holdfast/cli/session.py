"""A session: one command's time with its stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from holdfast import wiring
from holdfast.bus.client import Bus
from holdfast.bus.partitions import Partition
from holdfast.cli.options import ConfigFile, Urls, flat
from holdfast.cli.output import say
from holdfast.contracts import Backend
from holdfast.model.errors import NotFound
from holdfast.model.names import selects
from holdfast.model.redact import address
from holdfast.wiring import connect

if TYPE_CHECKING:
    from holdfast.config.config import Config
    from holdfast.deadletters import DeadLetters

T = TypeVar("T")
Ask = Callable[[Backend], Awaitable[T]]


def with_bus(urls: Urls, config: ConfigFile, work: Callable[[Bus], Awaitable[T]]) -> T:
    """Open the bus, do the work, close it. Like every bus, it takes a step of the lifecycle when it opens."""

    async def session() -> T:
        async with connect(flat(urls), config=config) as bus:
            return await work(bus)

    return asyncio.run(session())


def ask_partitions(urls: Urls, config: ConfigFile, ask: Callable[[Partition], Awaitable[T]]) -> list[T]:
    """Ask every partition, in order, without a step of the lifecycle: reading changes nothing."""

    async def session() -> list[T]:
        bus = connect(flat(urls), config=config)
        try:
            return [await ask(partition) for partition in bus.partitions.all]
        finally:
            await bus.close()

    return asyncio.run(session())


def ask_stores(urls: Urls, config: ConfigFile, ask: Ask[T]) -> list[T]:
    """What the stores know of something; `NotFound` when none knows it."""

    async def answer(partition: Partition) -> T | NotFound:
        try:
            return await ask(await open_partition(partition))
        except NotFound as error:
            return error

    answers = ask_partitions(urls, config, answer)
    found = [each for each in answers if not isinstance(each, NotFound)]
    for each in answers:
        if isinstance(each, NotFound) and not found:
            raise each
    return found


async def open_partition(partition: Partition) -> Backend:
    """Open a partition's store and return it; whoever made the partition closes it."""
    await partition.open()
    return partition.backend


async def stores(bus: Bus) -> list[Backend]:
    """The store of every partition of an open bus; one that does not answer raises `Unavailable`."""
    return [(await bus.partitions.ready(partition)).backend for partition in bus.partitions.all]


def store_name(partition: Partition) -> str:
    """A store as messages call it: without user and password."""
    return address(partition.backend.url)


async def channel_names(config: Config, urls: Sequence[str]) -> set[str]:
    """The channels of all stores."""
    found: set[str] = set()
    for url in urls:
        async with _store(config, url) as store:
            found.update(await store.channels.names())
    return found


async def warn_unmatched(config: Config, urls: Sequence[str], patterns: Sequence[str]) -> None:
    """Say which names and patterns select no channel: they may be mistyped."""
    left = list(dict.fromkeys(patterns))
    for url in urls:
        async with _store(config, url) as store:
            there = await store.channels.names()
            left = [each for each in left if not any(selects(each, channel) for channel in there)]
            # Entries of a client that knows nothing of channels are read, too.
            left = [each for each in left if _is_pattern(each) or (await store.log.extent(each)).last is None]
    for each in left:
        say(f"no channel matches {each!r}; 'holdfast channels list' shows all")


def _is_pattern(text: str) -> bool:
    return "*" in text or ">" in text


@asynccontextmanager
async def _store(config: Config, url: str) -> AsyncIterator[Backend]:
    store = wiring.backend(url, config=config)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def with_deadletters(
    urls: Urls,
    config: ConfigFile,
    wal: str | None,
    kinds: Iterable[str],
    work: Callable[[DeadLetters], Awaitable[T]],
) -> T:
    """Open the stores, without a step of the lifecycle, do the work, close them.

    The ingest's records are there if its WAL is named, its channels are configured, or `kinds` asks for them.
    """
    from holdfast.cli.pipeline import failed_events
    from holdfast.deadletters import DeadLetters

    effective = wiring.configured(flat(urls), config)

    async def session() -> T:
        bus = connect(config=effective)
        with ExitStack() as stack:
            records = None
            if wal is not None or effective.ingest.channels or "ingest" in kinds:
                records = stack.enter_context(failed_events(config, wal, None))
            try:
                for partition in bus.partitions.all:
                    await open_partition(partition)
                return await work(DeadLetters(bus, effective.namespace, records))
            finally:
                await bus.close()

    return asyncio.run(session())
