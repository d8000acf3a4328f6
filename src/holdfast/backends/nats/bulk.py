"""The log at a glance: its extent, where a time stands, how much follows a position, how large it is."""

from __future__ import annotations

import asyncio
from datetime import datetime

from holdfast.backends.nats.codec import data_size
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.floors import floor
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.stretches import stretch
from holdfast.backends.nats.times import format_stamp, from_micros, to_micros
from holdfast.model.log import Extent, Lag
from holdfast.model.upkeep import Size

_END = 1 << 62
_SAMPLES, _SAMPLE, _SAMPLE_BYTES = 8, 32, 1_000_000


class Bulk:
    """Answers by counting and bisecting: none of these reads the log."""

    def __init__(self, store: Store, entries: Entries, fates: Fates) -> None:
        self._store, self._entries, self._fates = store, entries, fates

    async def extent(self, channel: str) -> Extent:
        """From where to where the log can be read."""
        await self._store.look()
        known = await floor(self._store, channel)
        first, _ = await self._entries.page(channel, known.seq, 1)
        last = await self.last(channel) if first else None
        position = self._store.registry.position
        return Extent(
            position(known.seq) if known.seq else None,
            position(first[0].seq) if last else None,
            position(last) if last else None,
        )

    async def last(self, channel: str) -> int:
        """The newest entry that may be read and was not trimmed; 0 where there is none."""
        horizon = await self._fates.horizon(channel)
        found = await self._entries.last(channel, horizon)
        known = await floor(self._store, channel)
        return found.seq if found is not None and found.seq > known.seq else 0

    async def seek(self, channel: str, time: datetime) -> str | None:
        """The position of the last event published before a time."""
        await self._store.look()
        before = await self.first_at(to_micros(time))
        horizon = await self._fates.horizon(channel)
        found = await self._entries.last(channel, min(horizon, before - 1))
        known = await floor(self._store, channel)
        if found is None or found.seq <= known.seq:
            return None
        return self._store.registry.position(found.seq)

    async def first_at(self, time: int) -> int:
        """The first sequence that was stored at a time, in the store's, or later."""
        following = _END
        for start, offset in reversed(self._store.registry.offsets):
            query = {"start_time": format_stamp(time - offset), "next_by_subj": ">", "batch": 1}
            found, _ = await self._store.link.read(query)
            first = min(found[0].seq if found else _END, following)
            if first > start:
                return first
            following = start  # it may have been before the clock was last moved
        return following

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        """How many events follow a position, and how old the first of them is."""
        await self._store.look()
        start = self._store.place(after)
        if start is None:
            return Lag(0, None)
        horizon = await self._fates.horizon(channel)
        found, _ = await self._entries.page(channel, start, 1)
        if not found or found[0].seq > horizon:
            return Lag(0, None)
        count = (await stretch(self._entries, self._fates, channel, start, horizon)).count
        return Lag(min(count, limit), from_micros(self._entries.published(found[0])))

    async def size(self, channel: str) -> Size:
        """How much the log holds, from a sample of it."""
        await self._store.look()
        known = await floor(self._store, channel)
        first, count = await self._entries.first(channel, known.seq)
        if first is None:
            return Size(0, 0)
        newest = await self._store.link.last([channel])
        step = (newest[0].seq - first.seq) // _SAMPLES + 1
        query = {"next_by_subj": channel, "batch": _SAMPLE, "max_bytes": _SAMPLE_BYTES}
        places = range(first.seq, newest[0].seq + 1, step)
        looks = await asyncio.gather(*(self._store.link.read({"seq": at, **query}) for at in places))
        sizes = [data_size(message) for found, _ in looks for message in found]
        return Size(count, count * sum(sizes) // max(len(sizes), 1))
