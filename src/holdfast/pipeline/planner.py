"""The planner: asks the stores what there is to read, and decides what a batch holds."""

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
from holdfast.pipeline import portions
from holdfast.pipeline.offsets import Offsets, Range, Spot, is_after, later, ranges
from holdfast.pipeline.options import Options, Place, Position, is_pattern
from holdfast.pipeline.portions import FINE, Slice

T = TypeVar("T")
log = logging.getLogger(__name__)

ABREAST = 64
"""Questions under way at once: a thousand idle channels cost some dozen round trips."""
EVERYTHING = 2**53
FEW = 200
"""Of a channel on which fewer events wait, one look tells all that a batch has to know."""


class Admitted(NamedTuple):
    """How much a batch takes of what there is, about, and where it ends on each channel."""

    ends: Offsets
    rows: int
    bytes: int


class Planner:
    """What there is on the stores of a source."""

    def __init__(self, options: Options, backends: Sequence[Backend]) -> None:
        self._options, self._backends = options, backends
        self._gate = asyncio.Semaphore(ABREAST)
        self._turn = 0
        self._known: dict[Range, Waiting] = {}
        """What the last look found on channels with news."""

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
        found = await asyncio.gather(*(backend.channels() for backend in self._backends))
        absent = [each for each in named if not any(each in channels for channels in found)]
        # Entries of a client that knows nothing of channels are read, too.
        extents = await self._ask(self._everywhere(absent), self._extent)
        for name in absent:
            if all(_is_empty(extents[spot]) for spot in self._everywhere([name])):
                raise NotFound(
                    f"there is no channel {name!r}; correct the name, create the channel, or set "
                    "failOnMissingChannel=false to wait for it"
                )

    async def ending(self, place: Place) -> Offsets:
        """Where each channel ends, or would end at that place."""

        async def end(spot: Spot) -> str | None:
            return await self._locate(spot, place)

        return await self._ask(await self._spots(), end)

    async def latest(self, start: Offsets, rows: int | None, target: Offsets | None = None) -> Offsets:
        """How far the next batch goes: up to that many rows, or to the end, but not beyond a target."""
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

    async def since(self, wanted: Iterable[Range]) -> dict[Spot, datetime]:
        """When the first event of each range was published, as far as the stores know."""
        ranges = list(wanted)
        asked = await self._waiting({each.spot: each.after for each in ranges if each not in self._known})
        found = {each.spot: self._known.get(each) or asked[each.spot] for each in ranges}
        return {spot: each.oldest for spot, each in found.items() if each.oldest is not None}

    def small(self, each: Range) -> Waiting | None:
        """What the last look found in a range, where it saw the whole of it."""
        found = self._known.get(each)
        return found if found is not None and found.rows < FEW and found.last == each.until else None

    async def _waiting(self, after: Offsets) -> dict[Spot, Waiting]:
        by_store: dict[int, dict[str, str | None]] = {}
        for spot, position in after.items():
            by_store.setdefault(spot.partition, {})[spot.channel] = position
        asked = (self._backends[place].waiting(each, FEW) for place, each in by_store.items())
        return {
            Spot(place, channel): waiting
            for place, found in zip(by_store, await asyncio.gather(*asked), strict=True)
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
        # Another one comes first each time: with more busy channels than rows, each has its turn.
        self._turn += 1
        first = self._turn % len(news)
        news = news[first:] + news[:first]
        reach = portions.reach(rows, len(news))
        every = min(self._options.rows_per_partition, max(1, reach // FINE))
        found = await asyncio.gather(*(self._cut(each, reach, every) for each in news))
        quotas = portions.quotas(found, rows, self._options.max_bytes)
        ends = await asyncio.gather(*map(self._end, news, found, quotas))
        size = sum(map(portions.weight, found, quotas))
        return Admitted({each.spot: end for each, end in zip(news, ends, strict=True)}, sum(quotas), size)

    async def _end(self, each: Range, found: list[Cut], quota: int) -> str | None:
        if quota == sum(cut.rows for cut in found):
            return found[-1].position if found else each.after
        cuts = await self._cut(each, quota, max(1, quota // FINE)) if quota else []
        return portions.end(cuts, quota) if cuts else each.after

    async def _cut_all(self, wanted: list[Range], every: int) -> list[Slice]:
        cuts = await asyncio.gather(*(self._cut(each, EVERYTHING, every) for each in wanted))
        return [part for each, its in zip(wanted, cuts, strict=True) for part in portions.slices(each, its)]

    async def _cut(self, each: Range, limit: int, every: int) -> list[Cut]:
        async with self._gate:
            backend = self._backends[each.spot.partition]
            return await backend.cuts(each.spot.channel, each.after, limit, every, each.until)

    def _everywhere(self, channels: Iterable[str]) -> list[Spot]:
        return [Spot(place, channel) for channel in channels for place in range(len(self._backends))]

    async def _spots(self) -> list[Spot]:
        found = await asyncio.gather(*map(self._channels, self._backends))
        return [Spot(place, channel) for place, channels in enumerate(found) for channel in channels]

    async def _channels(self, backend: Backend) -> list[str]:
        named = {each for each in self._options.channels if not is_pattern(each)}
        patterns = [each for each in self._options.channels if is_pattern(each)]
        there = await backend.channels() if patterns else []
        return sorted(named.union(c for c in there if any(selects(each, c) for each in patterns)))

    async def _enter(self, spots: Iterable[Spot], place: Place) -> Offsets:
        """Where reading begins on channels that no offset knows yet."""
        consumer = self._options.consumer

        async def enter(spot: Spot) -> str | None:
            if consumer is None or isinstance(place, Position):
                return await self._locate(spot, place)
            return (await self._backends[spot.partition].attach(spot.channel, consumer, place)).position

        return await self._ask(spots, enter)

    async def _locate(self, spot: Spot, place: Place) -> str | None:
        extent = await self._extent(spot)
        match place:
            case "earliest":
                return extent.trimmed
            case "latest":
                return later(extent.last, extent.trimmed)
            case datetime():
                found = await self._backends[spot.partition].seek(spot.channel, place)
                return later(found, extent.trimmed)
            case Position(text):
                return text

    async def _extent(self, spot: Spot) -> Extent:
        return await self._backends[spot.partition].extent(spot.channel)

    def _survivor(self, spot: Spot, position: str | None, trimmed: str | None) -> str | None:
        """From where one can go on after `position`; `DataLost` where that would pass over something."""
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

    async def _ask(self, spots: Iterable[Spot], question: Callable[[Spot], Awaitable[T]]) -> dict[Spot, T]:
        """The answers for many channels, some of them under way at once."""

        async def ask(spot: Spot) -> tuple[Spot, T]:
            async with self._gate:
                return spot, await question(spot)

        return dict(await asyncio.gather(*map(ask, spots)))


def _is_empty(extent: Extent) -> bool:
    return extent.last is None and extent.trimmed is None
