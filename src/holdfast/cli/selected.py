"""Which channels there are, and whether patterns select any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast import wiring
from holdfast.cli.output import say
from holdfast.model.names import selects

if TYPE_CHECKING:
    from holdfast.config.config import Config
    from holdfast.contracts import Backend


async def channels_of(config: Config, urls: Sequence[str]) -> set[str]:
    """What the stores have."""
    found: set[str] = set()
    for url in urls:
        async with _opened(config, url) as store:
            found.update(await store.channels())
    return found


async def tell_unmatched(config: Config, urls: Sequence[str], patterns: Sequence[str]) -> None:
    """Say which names and patterns select no channel: they may be mistyped."""
    left = list(dict.fromkeys(patterns))
    for url in urls:
        async with _opened(config, url) as store:
            there = await store.channels()
            left = [each for each in left if not any(selects(each, channel) for channel in there)]
            # Entries of a client that knows nothing of channels are read, too.
            left = [each for each in left if _is_pattern(each) or (await store.extent(each)).last is None]
    for each in left:
        say(f"no channel matches {each!r}; 'holdfast channels list' shows all")


def _is_pattern(text: str) -> bool:
    return "*" in text or ">" in text


@asynccontextmanager
async def _opened(config: Config, url: str) -> AsyncIterator[Backend]:
    store = wiring.backend(url, config=config)
    await store.open()
    try:
        yield store
    finally:
        await store.close()
