"""A plain stream consumer: it notes what it read, durably, and then moves its cursor, as an archiver does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count

from holdfast.chaos.history import History
from holdfast.contracts import Backend
from holdfast.model.log import Page


async def archive(
    store: Backend,
    notes: History,
    channel: str,
    consumer: str,
    size: int,
    pages: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    """So many pages of a size; without a number: until it is over and nothing is left to read."""
    numbers = count(1)
    async for at, page in _pages(store, channel, consumer, size, is_over):
        notes.happened(
            "archived", *({"channel": channel, "consumer": consumer, "id": name} for name in page.ids)
        )
        notes.sync()
        if not await store.move(channel, consumer, at, page.positions[-1]):
            raise RuntimeError(f"somebody else moved the cursor of {consumer} from {at}")
        if next(numbers) == pages:
            return


async def _pages(
    store: Backend, channel: str, consumer: str, size: int, is_over: Callable[[], bool]
) -> AsyncIterator[tuple[str | None, Page]]:
    """Every page, with the position before it."""
    at = (await store.attach(channel, consumer)).position
    while True:
        over, last = is_over(), (await store.extent(channel)).last
        if last is not None and (at is None or last > at):
            async for page in store.pages(channel, at, last, size):
                yield at, page
                at = page.positions[-1]
        elif over:
            return
        await asyncio.sleep(0.02)
