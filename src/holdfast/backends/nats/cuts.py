"""Cuts: where to part the log of a channel into slices."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from holdfast.backends.nats.codec import data_size
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.stretches import Spot, stretch
from holdfast.model.log import Cut


class Cuts:
    """Parts the log of a channel."""

    def __init__(self, store: Store, entries: Entries, fates: Fates) -> None:
        self._store, self._entries, self._fates = store, entries, fates

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None
    ) -> list[Cut]:
        """Slices of about `every` events, `limit` events in all or less than a slice more."""
        await self._store.look()
        start, end = self._store.place(after), self._store.place(until) if until is not None else None
        horizon = await self._fates.horizon(channel)
        last = await self._entries.last(channel, horizon if end is None else min(horizon, end))
        if start is None or last is None or last.seq <= start or limit < 1:
            return []
        found = await stretch(self._entries, self._fates, channel, start, last.seq)
        count, every = min(found.count, limit), max(every, 1)
        near = every // 10
        inner = [found.find(number, near, near) for number in range(every, count, every)]
        spots = [*await asyncio.gather(*inner), await found.find(count, above=every - 1)]
        return self._shown(spots, found.sizes or [data_size(last)])

    def _shown(self, spots: list[Spot], sizes: list[int]) -> list[Cut]:
        position, size = self._store.registry.position, sum(sizes) / len(sizes)
        ends = [(0, 0), *spots]
        rows = [spot[1] - before[1] for before, spot in pairwise(ends)]
        return [
            Cut(position(spot.seq), row, round(row * size))
            for spot, row in zip(spots, rows, strict=True)
            if row
        ]
