"""Pages: the log column by column, as fast as one connection brings it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from holdfast.backends.nats import subjects
from holdfast.backends.nats.answers import Raw, Stored, stored
from holdfast.backends.nats.columns import page_of_events, page_of_rows, rows
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.fates import Fates
from holdfast.backends.nats.floors import floor
from holdfast.backends.nats.store import Store
from holdfast.model.errors import DataLost
from holdfast.model.log import Page

MOST = 5000
"""Events in one answer: from here on more make it no faster."""
_BYTES = 8 << 20
_PAUSE = 0.05
_END = 1 << 62
_Answer = tuple[list[Raw], int]


class Pages:
    """Reads a range of a channel's log."""

    def __init__(self, store: Store, entries: Entries, fates: Fates) -> None:
        self._store, self._entries, self._publishes = store, entries, fates

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        """Every event of the range in order. The next answer is on its way while one is used."""
        await self._store.look()
        start, end = self._store.place(after), self._store.place(until)
        if start is None:
            return
        end = _END if end is None else end
        beyond, most = await self._entries.count(channel, end), max(min(size, MOST), 1)
        coming = self._ask(channel, start, most)
        try:
            while True:
                messages, pending = await coming
                at, left = stored(messages[-1]).seq if messages else end, pending - beyond
                last = at >= end or left <= 0
                if not last:
                    coming = self._ask(channel, at, min(most, left))
                    await asyncio.sleep(0)  # it is sent before this answer is worked on
                if page := await self._page(channel, messages, end):
                    yield page
                if last:
                    return
        finally:
            coming.cancel()

    def _ask(self, channel: str, after: int, most: int) -> asyncio.Task[_Answer]:
        asked = asyncio.create_task(self._answer(channel, after, most))
        asked.add_done_callback(_looked_at)
        return asked

    async def _answer(self, channel: str, after: int, most: int) -> _Answer:
        """What follows a sequence. A trim first writes down what it will remove: a look behind is enough."""
        query = {"seq": after + 1, "next_by_subj": channel, "batch": most, "max_bytes": _BYTES}
        answer = await self._store.link.read_raw(query, subjects.STREAM)
        known = await floor(self._store, channel)
        if known.seq > after:
            position = self._store.registry.position
            raise DataLost(
                f"channel {channel!r} was trimmed up to {position(known.seq)}, which is after "
                f"{position(after)}; begin again where it begins now"
            )
        return answer

    async def _page(self, channel: str, messages: Sequence[Raw], end: int) -> Page | None:
        usual = rows(messages)
        if usual is None:
            return await self._unusual(channel, [stored(message) for message in messages], end)
        fates = await self._fates(channel, {row.publish: row.stamp for row in usual if row.publish})
        kept = [row for row in usual if fates.get(row.publish, True) and int(row.seq) <= end]
        return page_of_rows(kept, self._store.registry) if kept else None

    async def _unusual(self, channel: str, messages: Sequence[Stored], end: int) -> Page | None:
        """A page with foreign events, or with large ones, whose parts are fetched."""
        publishes = [(each.headers.get(subjects.PUBLISH), each) for each in messages if each.seq <= end]
        fates = await self._fates(channel, {name: each.stamp for name, each in publishes if name})
        kept = [each for name, each in publishes if fates.get(name, True)]
        events = await self._entries.intact(channel, kept)
        found = [(each.seq, event) for each, event in zip(kept, events, strict=True)]
        return page_of_events(found, self._store.registry) if found else None

    async def _fates(self, channel: str, publishes: Mapping[str, str]) -> dict[str | None, bool]:
        """What is under way inside the range is waited for: a range always gives the same events."""
        while publishes:
            fates = await self._publishes.of(channel, publishes)
            if None not in fates.values():
                return {name: bool(fate) for name, fate in fates.items()}
            await asyncio.sleep(_PAUSE)
        return {}


def _looked_at(asked: asyncio.Task[_Answer]) -> None:
    """A reader that goes away early need not hear what became of the next answer."""
    if not asked.cancelled():
        asked.exception()
