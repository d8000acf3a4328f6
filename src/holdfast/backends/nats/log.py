"""The log of each channel: publishing, reading, counting, and where to cut it into slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from holdfast import failpoints
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.publish_outcome import PublishOutcomes
from holdfast.backends.nats.state.publisher import BatchPublisher
from holdfast.backends.nats.state.registry import Registry
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.codec import (
    Delivery,
    EventRow,
    data_size,
    from_micros,
    headers_in,
    key_in,
    parse_stamp,
    rows,
    time_of,
    to_micros,
)
from holdfast.backends.nats.wire.parser import Raw, StoredMessage, stored
from holdfast.backends.parts import read_parts
from holdfast.model.errors import DataLost, InvalidInput
from holdfast.model.event import DEFAULT_SOURCE, DEFAULT_TYPE, Event, LogEntry, Receipt
from holdfast.model.log import PARTS, Cut, Extent, Lag, Page, Part, Waiting

_PAGE = 5000  # events in one read: from here on more make it no faster
_PAGE_BYTES = 8 << 20
_PAUSE = 0.05
_CHANNELS_AT_ONCE = 64
_SECOND = len("2025-01-01T00:00:00")
_END = 1 << 62
_Found = tuple[list[Raw], int]


class Log:
    """Appends to channels and reads them back."""

    def __init__(
        self, store: NatsStore, entries: Entries, outcomes: PublishOutcomes, publisher: BatchPublisher
    ) -> None:
        self._store, self._entries, self._outcomes, self._publisher = store, entries, outcomes, publisher

    async def publish(
        self,
        channel: str,
        events: Sequence[Event],
        *,
        at: datetime | None = None,
        priority: int = 0,
        connection: Any = None,
    ) -> list[Receipt]:
        if connection is not None:
            raise InvalidInput("NATS has no transaction that a publish could join; leave out the connection")
        if not events:
            return []
        failpoints.hit("publish.before_commit")
        delivery = Delivery(None if at is None else to_micros(at), priority)
        drafts = await self._publisher.append(channel, events, delivery)
        failpoints.hit("publish.after_commit")
        position = self._store.registry.position
        return [Receipt(draft.event.id, position(draft.seq or 0), draft.duplicate) for draft in drafts]

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        await self._store.look()
        start = self._store.sequence(after)
        if start is None:
            return []
        found, _ = await self._entries.page(channel, start, limit)
        events, position = await self._entries.intact(channel, found), self._store.registry.position
        return [
            LogEntry(channel, position(message.seq), event)
            for message, event in zip(found, events, strict=True)
        ]

    # counted and bisected: none of these reads the log

    async def extent(self, channel: str) -> Extent:
        await self._store.look()
        mark = await self._store.trim_mark(channel)
        first, _ = await self._entries.page(channel, mark.seq, 1)
        last = await self._last(channel, await self._outcomes.horizon(channel)) if first else None
        position = self._store.registry.position
        return Extent(
            position(mark.seq) if mark.seq else None,
            position(first[0].seq) if last else None,
            position(last) if last else None,
        )

    async def seek(self, channel: str, time: datetime) -> str | None:
        await self._store.look()
        before = await self._entries.first_at(to_micros(time))
        last = await self._last(channel, min(await self._outcomes.horizon(channel), before - 1))
        return self._store.registry.position(last) if last else None

    async def _last(self, channel: str, until: int) -> int:
        """Return the newest entry up to a sequence that was not trimmed; 0 where there is none."""
        found = await self._entries.last(channel, until)
        mark = await self._store.trim_mark(channel)
        return found.seq if found is not None and found.seq > mark.seq else 0

    async def cuts(
        self, channel: str, after: str | None, limit: int, every: int, until: str | None = None
    ) -> list[Cut]:
        await self._store.look()
        start, end = self._store.sequence(after), self._store.sequence(until) if until is not None else None
        horizon = await self._outcomes.horizon(channel)
        last = await self._entries.last(channel, horizon if end is None else min(horizon, end))
        if start is None or last is None or last.seq <= start or limit < 1:
            return []
        found = await self._entries.range_of(channel, start, last.seq)
        count, every = min(found.count, limit), max(every, 1)
        near = every // 10
        inner = [found.find(number, near, near) for number in range(every, count, every)]
        ends = [*await asyncio.gather(*inner), await found.find(count, above=every - 1)]
        sizes, position = found.sizes or [data_size(last)], self._store.registry.position
        size = sum(sizes) / len(sizes)
        counts = [each[1] - before[1] for before, each in pairwise([(0, 0), *ends])]
        return [
            Cut(position(each.seq), number, round(number * size))
            for each, number in zip(ends, counts, strict=True)
            if number
        ]

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        await self._store.look()
        start = self._store.sequence(after)
        if start is None:
            return Lag(0, None)
        horizon = await self._outcomes.horizon(channel)
        found, _ = await self._entries.page(channel, start, 1)
        if not found or found[0].seq > horizon:
            return Lag(0, None)
        count = (await self._entries.range_of(channel, start, horizon)).count
        return Lag(min(count, limit), from_micros(self._entries.published(found[0])))

    async def waiting(self, after: Mapping[str, str | None], limit: int) -> dict[str, Waiting]:
        """JetStream has no request for several subjects, so each is asked by itself."""
        gate = asyncio.Semaphore(_CHANNELS_AT_ONCE)

        async def ask(channel: str, start: str | None) -> Waiting:
            async with gate:
                extent, lag = await self.extent(channel), await self.behind(channel, start, limit)
                cuts = await self.cuts(channel, start, limit, limit) if lag.events else []
                size = sum(cut.bytes for cut in cuts)
                return Waiting(extent.trimmed, extent.last, lag.events, size, lag.oldest)

        found = await asyncio.gather(*(ask(*each) for each in after.items()))
        return dict(zip(after, found, strict=True))

    # column by column, as fast as one connection brings it

    async def read_parts(self, parts: Sequence[Part], most: int = PARTS) -> list[Page]:
        return await read_parts(lambda part: self.pages(*part, _PAGE), parts, most)

    async def pages(self, channel: str, after: str | None, until: str, size: int) -> AsyncIterator[Page]:
        """The next page is on its way while one is used."""
        await self._store.look()
        start, end = self._store.sequence(after), self._store.sequence(until)
        if start is None:
            return
        end = _END if end is None else end
        beyond, most = await self._entries.count(channel, end), max(min(size, _PAGE), 1)
        coming = self._request(channel, start, most, end)
        try:
            while True:
                messages, pending = await coming
                at, left = stored(messages[-1]).seq if messages else end, pending - beyond
                if self._store.connection.is_replicated:  # another server has counted, which may lag
                    left = max(left, min(pending, 1))
                last = at >= end or left <= 0
                if not last:
                    coming = self._request(channel, at, min(most, left), end)
                    await asyncio.sleep(0)  # it is sent before this page is worked on
                if page := await self._page(channel, messages, end):
                    yield page
                if last:
                    return
        finally:
            coming.cancel()

    def _request(self, channel: str, after: int, most: int, end: int) -> asyncio.Task[_Found]:
        async def read() -> _Found:
            query = {"seq": after + 1, "next_by_subj": channel, "batch": most, "max_bytes": _PAGE_BYTES}
            found = await self._store.connection.read_raw(query, subjects.STREAM, end if end < _END else 0)
            # A trim first writes down what it will remove: a look behind is enough.
            mark = await self._store.trim_mark(channel)
            if mark.seq > after:
                position = self._store.registry.position
                raise DataLost(
                    f"channel {channel!r} was trimmed up to {position(mark.seq)}, which is after "
                    f"{position(after)}; begin again where it begins now"
                )
            return found

        coming = asyncio.create_task(read())
        coming.add_done_callback(_look_at)
        return coming

    async def _page(self, channel: str, messages: Sequence[Raw], end: int) -> Page | None:
        usual = rows(messages)
        if usual is None:
            return await self._unusual(channel, [stored(message) for message in messages], end)
        committed = await self._committed(channel, {row.publish: row.stamp for row in usual if row.publish})
        kept = [row for row in usual if committed.get(row.publish, True) and int(row.seq) <= end]
        return _page_of_rows(kept, self._store.registry) if kept else None

    async def _unusual(self, channel: str, messages: Sequence[StoredMessage], end: int) -> Page | None:
        """Return a page with foreign events, or with large ones, whose parts are fetched."""
        publishes = [(each.headers.get(subjects.PUBLISH), each) for each in messages if each.seq <= end]
        committed = await self._committed(channel, {name: each.stamp for name, each in publishes if name})
        kept = [each for name, each in publishes if committed.get(name, True)]
        events = await self._entries.intact(channel, kept)
        found = [(each.seq, event) for each, event in zip(kept, events, strict=True)]
        return _page_of_events(found, self._store.registry) if found else None

    async def _committed(self, channel: str, publishes: Mapping[str, str]) -> dict[str | None, bool]:
        """Wait for what is under way inside the range, since that always gives the same events."""
        while publishes:
            outcomes = await self._outcomes.of(channel, publishes)
            if None not in outcomes.values():
                return {name: bool(outcome) for name, outcome in outcomes.items()}
            await asyncio.sleep(_PAUSE)
        return {}


def _look_at(coming: asyncio.Task[_Found]) -> None:
    """A reader that goes away early need not hear what became of the next page."""
    if not coming.cancelled():
        coming.exception()


def _page_of_rows(found: Sequence[EventRow], registry: Registry) -> Page:
    ids, sources, types, keys, times, _, headers, numbers, stamps, data = zip(*found, strict=True)
    seqs = [int(number) for number in numbers]
    stored = _stored(stamps, seqs, registry)
    given = {text: time_of(text) for text in set(times)}
    extras = {text: headers_in(text) for text in set(headers)}
    named = {text: key_in(text) for text in set(keys)}
    return Page(
        _positions(seqs, registry),
        [unquote(text) for text in ids],
        _texts(sources, DEFAULT_SOURCE),
        _texts(types, DEFAULT_TYPE),
        [named[text] for text in keys],
        [to_micros(at) if (at := given[text]) else when for text, when in zip(times, stored, strict=True)],
        [extras[text] for text in headers],
        list(data),
    )


def _page_of_events(found: Sequence[tuple[int, Event]], registry: Registry) -> Page:
    events = [event for _, event in found]
    return Page(
        _positions([seq for seq, _ in found], registry),
        [event.id for event in events],
        [event.source for event in events],
        [event.type for event in events],
        [event.key for event in events],
        [to_micros(event.time) if event.time else 0 for event in events],
        [event.headers for event in events],
        [event.data for event in events],
    )


def _texts(column: Sequence[str | None], default: str) -> list[str]:
    """Most columns have few values."""
    values = {text: unquote(text or "") or default for text in set(column)}
    return [values[text] for text in column]


def _positions(seqs: Sequence[int], registry: Registry) -> list[str]:
    # One epoch, mostly: only the last field differs.
    first, last = registry.position(seqs[0]), registry.position(seqs[-1])
    epoch = first.partition("-")[0]
    if last.partition("-")[0] != epoch:
        return [registry.position(seq) for seq in seqs]
    return [f"{epoch}-{seq:016x}" for seq in seqs]


def _stored(stamps: Sequence[str], seqs: Sequence[int], registry: Registry) -> list[int]:
    """Return when each message was stored. Most are of the same few seconds."""
    seconds = {second: parse_stamp(second) for second in {stamp[:_SECOND] for stamp in stamps}}
    micros = [
        seconds[stamp[:_SECOND]] + int(stamp[_SECOND + 1 : _SECOND + 7].rstrip("Z").ljust(6, "0"))
        for stamp in stamps
    ]
    offset = registry.offset_at(seqs[0])
    if offset == registry.offset_at(seqs[-1]):
        return [at + offset for at in micros] if offset else micros
    return [at + registry.offset_at(seq) for at, seq in zip(micros, seqs, strict=True)]
