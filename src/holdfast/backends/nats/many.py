"""Many channels at once. JetStream has no request for several subjects, so each is asked by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from holdfast.contracts import Backend
from holdfast.model.log import Waiting

_ABREAST = 64


async def waiting(backend: Backend, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
    """What follows a position on each of many channels."""
    gate = asyncio.Semaphore(_ABREAST)

    async def ask(channel: str, start: str | None) -> Waiting:
        async with gate:
            extent, lag = await backend.extent(channel), await backend.behind(channel, start, limit)
            cuts = await backend.cuts(channel, start, limit, limit) if lag.events else []
            size = sum(cut.bytes for cut in cuts)
            return Waiting(extent.trimmed, extent.last, lag.events, size, lag.oldest)

    found = await asyncio.gather(*(ask(*each) for each in after.items()))
    return dict(zip(after, found, strict=True))
