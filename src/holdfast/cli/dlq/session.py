"""A session with the dead letters: the service on the stores, and on the ingest where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import ExitStack
from typing import TypeVar

from holdfast import wiring
from holdfast.cli import failed
from holdfast.cli.options import ConfigFile, Urls, flat
from holdfast.cli.session import opened
from holdfast.deadletters import DeadLetters, Operations, Runner

T = TypeVar("T")


def with_letters(
    urls: Urls,
    config: ConfigFile,
    wal: str | None,
    kinds: Iterable[str],
    work: Callable[[DeadLetters], Awaitable[T]],
) -> T:
    """Open the stores, without a step of the lifecycle, do the work, close them.

    The ingest's records are there if its WAL is named, its channels are configured, or `kinds` asks for them.
    """
    effective = wiring.configured(flat(urls), config)

    async def session() -> T:
        bus = wiring.connect(config=effective)
        with ExitStack() as stack:
            records = None
            if wal is not None or effective.ingest.channels or "ingest" in kinds:
                records = stack.enter_context(failed.service(config, wal, None))
            try:
                for partition in bus.partitions.all:
                    await opened(partition)
                return await work(DeadLetters(bus, effective.namespace, records))
            finally:
                await bus.close()

    return asyncio.run(session())


def runner(letters: DeadLetters) -> Runner:
    """Runs operations in this process."""
    return Runner(Operations(letters), letters.bus.name)
