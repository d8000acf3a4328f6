"""The planner: finds what there is to read in the stores, and decides what a batch holds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, TypeVar

from holdfast.contracts import Backend
from holdfast.model.errors import DataLost, NotFound
from holdfast.model.log import Cut, Extent, Waiting
from holdfast.model.names import selects
from holdfast.pipeline import slices
from holdfast.pipeline.offsets import ChannelPartition, Offsets, Range, is_after, later, ranges
from holdfast.pipeline.options import Options, Place, Position, is_pattern
from holdfast.pipeline.slices import FINE, Slice

T = TypeVar("T")
log = logging.getLogger(__name__)

PARALLEL = 64
"""Requests under way at once: a thousand idle channels cost some dozen round trips."""
NO_LIMIT = 2**53
FEW = 200
"""For a channel with fewer waiting events, one request returns all that a batch needs."""


class Admitted(NamedTuple):
    """Where a batch ends on each channel, and about how much it takes."""

    ends: Offsets
    rows: int
    bytes: int


class Planner:
    """Plans the batches of a source."""

    def __init__(self, options: Options, backends: Sequence[Backend]) -> None:
        self._options, self._backends = options, backends
        self._gate = asyncio.Semaphore(PARALLEL)
        self._round = 0
        self._known: dict[Range, Waiting] = {}
        """What the last call of `news` found on channels with new events."""

    async def beginning(self) -> Offsets:
        """Where a new query starts on each channel that is there. Raises what `check_channels` does."""
        await self.check_channels()
        return await self._enter(await self._spots(), self._options.start)

    async def check_channels(self) -> None:
        """Raise `NotFound` where a channel is named that no store has, unless such a one is to be waited for.

        A pattern that selects nothing is no error.
        """
        named = [each for each in self._options.channels if not is_pattern(each)]
        if not named or not self._options.fail_on_missing:
            return
        found = await asyncio.gather(*(backend.channels.names() for backend in self._backends))
        absent = [each for each in named if not any(each in channels for channels in found)]
        # Entries of a client that knows nothing of channels are read, too.
        extents = await self._ask(self._everywhere(absent), self._extent)
        for name in absent:
            there = [extents[spot] for spot in self._everywhere([name])]
            if all(each.last is None and each.trimmed is None for each in there):
                raise NotFound(
                    f"there is no channel {name!r}; correct the name, create the channel, or set "
                    "failOnMissingChannel=false to wait for it"
                )

    async def ending(self, place: Place) -> Offsets:
        """Where each channel ends, or would end at that place."""

        async def end(spot: ChannelPartition) -> str | None:
            return await self._locate(spot, place)

        return await self._ask(await self._spots(), end)

    async def latest(self, start: Offsets, rows: int | None, target: Offsets | None = None) -> Offsets:
        """The end of the next batch: after so many rows or at the end of the log, but not beyond a target."""
        end, news = await self.news(start, target)
        if rows:
            return end | (await self.admit(news, rows)).ends
        return end | {each.spot: each.until for each in news}

    async def news(self, start: Offsets, target: Offsets | None = None) -> tuple[Offsets, list[Range]]:
        """Where reading goes on, channels that are new among them, and what there is to read from there."""
        spots = [spot for spot in await self._spots() if target is None or spot in target]
        begun = {spot: start[spot] for spot in spots if spot in start}
        found = await self._waiting(begun)
        end = start | await self._enter([spot for spot in spots if spot not in start], "earliest")
        self._known = {}
        for spot, waiting in found.items():
            end[spot] = self._survivor(spot, start[spot], waiting.trimmed)
            last = waiting.last if target is None else target[spot]
            if last is not None and is_after(last, end[spot]):
                self._known[Range(spot, end[spot], last)] = waiting
        return end, list(self._known)

    async def since(self, wanted: Iterable[Range]) -> dict[ChannelPartition, datetime]:
        """When the first event of each range was published, as far as the stores know."""
        ranges = list(wanted)
        asked = await self._waiting({each.spot: each.after for each in ranges if each not in self._known})
        found = {each.spot: self._known.get(each) or asked[each.spot] for each in ranges}
        return {spot: each.oldest for spot, each in found.items() if each.oldest is not None}

    def small(self, each: Range) -> Waiting | None:
        """What `news` found in a range, where that was the whole of it; else None."""
        found = self._known.get(each)
        return found if found is not None and found.rows < FEW and found.last == each.until else None

    async def _waiting(self, after: Offsets) -> dict[ChannelPartition, Waiting]:
        by_store: dict[int, dict[str, str | None]] = {}
        for spot, position in after.items():
            by_store.setdefault(spot.partition, {})[spot.channel] = position
        asked = (self._backends[partition].log.waiting(each, FEW) for partition, each in by_store.items())
        return {
            ChannelPartition(partition, channel): waiting
            for partition, found in zip(by_store, await asyncio.gather(*asked), strict=True)
            for channel, waiting in found.items()
        }

    async def plan(self, start: Offsets, end: Offsets) -> tuple[list[Slice], int]:
        """The slices of a batch in order, and after how many rows to begin another task."""
        wanted, every = list(ranges(start, end)), self._options.rows_per_partition
        known = [(each, waiting) for each in wanted if (waiting := self.small(each)) is not None]
        if len(known) == len(wanted):
            parts = [Slice(*each, waiting.rows, waiting.bytes) for each, waiting in known]
        else:
            extents = await self._ask([each.spot for each in wanted], self._extent)
            wanted = [
                each._replace(after=self._survivor(each.spot, each.after, extents[each.spot].trimmed))
                for each in wanted
            ]
            parts = await self._cut_all(wanted, every)
        fair = max(1, sum(part.rows for part in parts) // self._options.min_partitions)
        if fair < every and any(part.rows > fair for part in parts):
            parts = await self._cut_all(wanted, fair)
        return parts, min(every, fair)

    async def admit(self, news: list[Range], rows: int) -> Admitted:
        """Where a batch of limited size ends on each channel that has news."""
        known = [waiting for each in news if (waiting := self.small(each)) is not None]
        if len(known) == len(news):
            whole = sum(each.rows for each in known), sum(each.bytes for each in known)
            if whole[0] <= rows and whole[1] <= self._options.max_bytes:
                return Admitted({each.spot: each.until for each in news}, *whole)
        # Another channel comes first each time, so that none starves where there are more of them than rows.
        self._round += 1
        first = self._round % len(news)
        news = news[first:] + news[:first]
        reach = slices.reach(rows, len(news))
        every = min(self._options.rows_per_partition, max(1, reach // FINE))
        found = await asyncio.gather(*(self._cut(each, reach, every) for each in news))
        quotas = slices.quotas(found, rows, self._options.max_bytes)
        ends = await asyncio.gather(*map(self._end, news, found, quotas))
        size = sum(map(slices.weight, found, quotas))
        return Admitted({each.spot: end for each, end in zip(news, ends, strict=True)}, sum(quotas), size)

    async def _end(self, each: Range, found: list[Cut], quota: int) -> str | None:
        if quota == sum(cut.rows for cut in found):
            return found[-1].position if found else each.after
        cuts = await self._cut(each, quota, max(1, quota // FINE)) if quota else []
        return slices.end(cuts, quota) if cuts else each.after

    async def _cut_all(self, wanted: list[Range], every: int) -> list[Slice]:
        cuts = await asyncio.gather(*(self._cut(each, NO_LIMIT, every) for each in wanted))
        return [part for each, its in zip(wanted, cuts, strict=True) for part in slices.cut_slices(each, its)]

    async def _cut(self, each: Range, limit: int, every: int) -> list[Cut]:
        async with self._gate:
            backend = self._backends[each.spot.partition]
            return await backend.log.cuts(each.spot.channel, each.after, limit, every, each.until)

    def _everywhere(self, channels: Iterable[str]) -> list[ChannelPartition]:
        return [
            ChannelPartition(partition, channel)
            for channel in channels
            for partition in range(len(self._backends))
        ]

    async def _spots(self) -> list[ChannelPartition]:
        found = await asyncio.gather(*map(self._channels, self._backends))
        return [
            ChannelPartition(partition, channel)
            for partition, channels in enumerate(found)
            for channel in channels
        ]

    async def _channels(self, backend: Backend) -> list[str]:
        named = {each for each in self._options.channels if not is_pattern(each)}
        patterns = [each for each in self._options.channels if is_pattern(each)]
        there = await backend.channels.names() if patterns else []
        return sorted(named.union(c for c in there if any(selects(each, c) for each in patterns)))

    async def _enter(self, spots: Iterable[ChannelPartition], place: Place) -> Offsets:
        """Where reading begins on channels that no offset knows yet."""
        consumer = self._options.consumer

        async def enter(spot: ChannelPartition) -> str | None:
            if consumer is None or isinstance(place, Position):
                return await self._locate(spot, place)
            return (
                await self._backends[spot.partition].cursors.attach(spot.channel, consumer, place)
            ).position

        return await self._ask(spots, enter)

    async def _locate(self, spot: ChannelPartition, place: Place) -> str | None:
        extent = await self._extent(spot)
        match place:
            case "earliest":
                return extent.trimmed
            case "latest":
                return later(extent.last, extent.trimmed)
            case datetime():
                found = await self._backends[spot.partition].log.seek(spot.channel, place)
                return later(found, extent.trimmed)
            case Position(text):
                return text

    async def _extent(self, spot: ChannelPartition) -> Extent:
        return await self._backends[spot.partition].log.extent(spot.channel)

    def _survivor(self, spot: ChannelPartition, position: str | None, trimmed: str | None) -> str | None:
        """From where to go on after `position`. Raises `DataLost` where events in between were trimmed."""
        if trimmed is None or not is_after(trimmed, position):
            return position
        message = (
            f"channel {spot.channel!r} of partition {spot.partition} was read up to "
            f"{position or 'its beginning'} and has been trimmed up to {trimmed} since: "
            "what lies between is no longer in the store"
        )
        if self._options.fail_on_loss:
            raise DataLost(
                f"{message}. Fetch it from the archive, then go on with the option failOnDataLoss=false "
                "or from a new checkpoint"
            )
        log.warning("%s; going on after it (failOnDataLoss=false)", message)
        return trimmed

    async def _ask(
        self, spots: Iterable[ChannelPartition], question: Callable[[ChannelPartition], Awaitable[T]]
    ) -> dict[ChannelPartition, T]:
        """The results for many channels, some of them requested at once."""

        async def ask(spot: ChannelPartition) -> tuple[ChannelPartition, T]:
            async with self._gate:
                return spot, await question(spot)

        return dict(await asyncio.gather(*map(ask, spots)))
