"""Parts of many channels at once, for stores that have no request for several, and guess their sizes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import cast

from holdfast.model.log import Page, Part, joined

_ABREAST = 16


async def read_parts(
    pages: Callable[[Part], AsyncIterator[Page]], parts: Sequence[Part], most: int
) -> list[Page]:
    """A page for each of the first parts. All are given up that are not whole by the time that `most` bytes
    of data are held: so no more is held than that, and a page of each that was on its way."""
    gate = asyncio.Semaphore(_ABREAST)
    held = 0

    async def whole(part: Part) -> Page | None:
        nonlocal held
        found = []
        async with gate:
            if held > most:
                return None
            async with aclosing(cast("AsyncGenerator[Page]", pages(part))) as its:
                async for page in its:
                    found.append(page)
                    held += sum(map(len, page.data))
                    if held > most:
                        return None
        return joined(found)

    read = await asyncio.gather(*map(whole, parts))
    return [page for page in takewhile(lambda page: page is not None, read) if page is not None]
