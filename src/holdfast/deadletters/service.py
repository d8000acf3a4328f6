"""Dead letters: the one service behind the command line, REST and the pages.

It looks: counts, the one list of three kinds, clusters, details. What changes them is an operation
(`operations`, `runner`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import timedelta

from holdfast.bus.client import Bus
from holdfast.contracts import Backend, Consumer
from holdfast.deadletters.items import (
    ClusterView,
    ConsumerDead,
    Count,
    Detail,
    Filter,
    ItemId,
    ItemPage,
    Verified,
    parse_item,
)
from holdfast.deadletters.messages import StreamSource, dead_letter_channels
from holdfast.deadletters.sources import (
    FailedRecords,
    IngestSource,
    JobSource,
    Source,
    item_of_failed,
    item_of_job,
    page_of,
)
from holdfast.model.deadletters import Cluster, DeadFilter, Drift, Fold, normalise
from holdfast.model.errors import InvalidInput, LockLost, NotFound, Unavailable
from holdfast.model.event import Event
from holdfast.model.scopes import EVERYWHERE, Right
from holdfast.upkeep.lock import holding

MOST_CLUSTERS = 10_000
MOST_PAGE = 1_000
MOST_SOURCES = 40
"""Places that a list takes from, where it is narrowed to what somebody may see."""
LOCK = "dlq-summary-updater"
FRESH = timedelta(minutes=10)
MOST_DELTAS = 10_000
"""Deltas that may wait before they are folded sooner."""
_TTL = timedelta(seconds=30)
_TRIES = 50
_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Folding:
    """Folds and recounts the counts of one store, under one lock per store that fences whoever holds it."""

    backend: Backend
    owner: str
    fresh: timedelta = FRESH
    most: int = MOST_DELTAS

    async def fold(self) -> Fold:
        """Fold, unless that was done lately or somebody else is at it."""
        async with holding(self.backend, LOCK, self.owner, _TTL) as lock:
            if lock is None:
                return Fold(folded=0, skipped=True)
            try:
                return await self.backend.deadletters.fold(self.fresh, self.most, lock)
            except LockLost:  # whoever has it now folds
                return Fold(folded=0, skipped=True)

    async def run_once(self) -> int:
        """Fold where it is time; returns how many deltas were folded."""
        return (await self.fold()).folded

    async def forecast(self) -> int:
        """How many deltas `run_once` would fold now."""
        return (await self.backend.deadletters.fold(self.fresh, self.most, None)).folded

    async def recount(self, repair: bool) -> list[Drift]:
        """Count what is there and compare, once whoever folds is done."""
        for _ in range(_TRIES):
            async with holding(self.backend, LOCK, self.owner, _TTL) as lock:
                if lock is not None:
                    return await self.backend.deadletters.recount(repair, lock)
            await asyncio.sleep(_PAUSE)
        raise Unavailable(f"somebody else holds the lock {LOCK!r}; try again in a minute")


class DeadLetters:
    """What died on an open bus, and on the ingest if its failed records are given."""

    def __init__(self, bus: Bus, namespace: str = "gbe", failed: FailedRecords | None = None) -> None:
        self.bus, self.namespace, self.failed = bus, namespace, failed

    # counts

    async def status(self, right: Right = EVERYWHERE) -> list[ConsumerDead]:
        """Every worker consumer that the right covers with its dead letters, exact, at a cost that does not
        grow with them."""
        consumers: dict[tuple[str, str], Consumer] = {}
        reasons: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for store in await self.stores():
            for each in await store.channels.consumers():
                consumers.setdefault((each.channel, each.name), each)
            for count in await store.deadletters.counts():
                reasons[count.channel, count.consumer][count.reason] += count.count
        return [
            _dead(consumers.get(key), *key, reasons[key])
            for key in sorted(consumers.keys() | reasons.keys())
            if right.holds(*key)
        ]

    async def count(self, wanted: Filter, most: int | None = None, right: Right = EVERYWHERE) -> Count:
        """How many a filter means of those that the right covers: from the counts where they know, else by
        looking at about `most`."""
        where = wanted.where
        known = await self._known(where, right) if "job" in wanted.kinds else 0
        looked = [
            each
            for each in await self.sources(wanted, right)
            if known is None or not isinstance(each, JobSource)
        ]
        number, exact = known or 0, True
        for source in looked:
            found = await source.count(where, most)
            number, exact = number + found.number, exact and found.exact
        return Count(number, exact)

    async def _known(self, where: DeadFilter, right: Right) -> int | None:
        """What the counts say; None where the letters must be looked at."""
        plain = replace(where, channel=None, consumer=None)
        if plain == DeadFilter(reason=where.reason):
            counts = [count for store in await self.stores() for count in await store.deadletters.counts()]
            return sum(
                count.count
                for count in counts
                if where.channel in (None, count.channel)
                and where.consumer in (None, count.consumer)
                and where.reason in (None, count.reason)
                and right.holds(count.channel, count.consumer)
            )
        if where.fingerprint is not None and plain == DeadFilter(fingerprint=where.fingerprint):
            clusters = await self._clusters(where.channel, where.consumer, MOST_CLUSTERS, right)
            if len(clusters) < MOST_CLUSTERS:
                return sum(each.count for each in clusters if each.fingerprint == where.fingerprint)
        return None

    async def clusters(
        self,
        channel: str | None = None,
        consumer: str | None = None,
        limit: int = 100,
        right: Right = EVERYWHERE,
    ) -> list[ClusterView]:
        """Dead letters by consumer and fingerprint, the largest first, all partitions together; those that
        the right covers."""
        found: dict[tuple[str, str, str], ClusterView] = {}
        # With several stores, a cluster may be large only when all of them are taken together.
        most = limit if len(self.bus.partitions.all) == 1 else max(limit, MOST_CLUSTERS)
        for cluster in await self._clusters(channel, consumer, most, right):
            key = cluster.channel, cluster.consumer, cluster.fingerprint
            found[key] = _joined(found.get(key), cluster)
        return sorted(found.values(), key=lambda each: -each.count)[:limit]

    async def _clusters(
        self, channel: str | None, consumer: str | None, most: int, right: Right
    ) -> list[ClusterView]:
        found: list[ClusterView] = []
        for index, store in enumerate(await self.stores()):
            for place in await _narrowed(store, channel, consumer, right):
                clusters = await store.deadletters.clusters(*place, most)
                found += [_view(each, index) for each in clusters if right.holds(each.channel, each.consumer)]
        return found

    async def verify(self, repair: bool = False) -> list[Verified]:
        """Recount every store; returns where the counts are wrong, and with `repair` makes them right."""
        found = []
        for index, store in enumerate(await self.stores()):
            drifts = await Folding(store, self.bus.name).recount(repair)
            found += [Verified(index, d.channel, d.consumer, d.reason, d.counted, d.found) for d in drifts]
        return found

    async def fold(self) -> list[Fold]:
        """Fold the counts of every store, where it is time."""
        return [await Folding(store, self.bus.name).fold() for store in await self.stores()]

    # the list

    async def find(
        self,
        wanted: Filter | None = None,
        after: str | None = None,
        limit: int = 100,
        right: Right = EVERYWHERE,
    ) -> ItemPage:
        """A page of the one list of what the right covers, the latest death first. `after` is what the page
        before gave."""
        if not 1 <= limit <= MOST_PAGE:
            raise InvalidInput(f"limit {limit} is outside 1 to {MOST_PAGE}")
        wanted = wanted or Filter()
        sources = await self.sources(wanted, right)
        if len(sources) > MOST_SOURCES and not right.holds():
            raise InvalidInput(
                f"these dead letters stand in {len(sources)} places, and a list takes from at most "
                f"{MOST_SOURCES}; name a channel"
            )
        return await page_of(sources, wanted, after, limit)

    async def show(self, item_id: str) -> Detail:
        """Everything about one item, or `NotFound`."""
        item = parse_item(item_id)
        match item.kind:
            case "job":
                return await self._job(item)
            case "ingest":
                return await self._failed_record(item)
            case "stream":
                return await self._message(item)

    async def sources(self, wanted: Filter, right: Right = EVERYWHERE) -> list[Source]:
        """Where the items are listed that a filter means and the right covers, by name. A message belongs to
        the channel that it stands in, wherever it came from."""
        found: list[Source] = []
        for index, store in enumerate(await self.stores()):
            if "job" in wanted.kinds:
                places = await _narrowed(store, wanted.where.channel, wanted.where.consumer, right)
                found += [JobSource(index, store, right, *place) for place in places]
            if "stream" in wanted.kinds:
                channels = await dead_letter_channels(store, self.namespace)
                found += [StreamSource(index, store, channel) for channel in channels if right.holds(channel)]
        if "ingest" in wanted.kinds and self.failed is not None:
            found.append(IngestSource(self.failed, right))
        return sorted(found, key=lambda source: source.name)

    async def stores(self) -> list[Backend]:
        """Every store, in order; one that does not answer raises `Unavailable`: half a count is none."""
        partitions = self.bus.partitions
        return [(await partitions.ready(partition)).backend for partition in partitions.all]

    async def store(self, partition: int) -> Backend:
        """One of them, or `NotFound`."""
        partitions = self.bus.partitions
        if partition >= len(partitions.all):
            raise NotFound(f"there is no partition {partition}; there are {len(partitions.all)}")
        return (await partitions.ready(partitions.all[partition])).backend

    async def stream(self, item: ItemId) -> StreamSource:
        """The dead-letter channel that an item is in, or `NotFound`."""
        store = await self.store(item.partition)
        if item.channel not in await dead_letter_channels(store, self.namespace):
            raise NotFound(f"there is no dead-letter channel {item.channel!r}")
        return StreamSource(item.partition, store, item.channel)

    def records(self) -> FailedRecords:
        """The ingest's failed records, or `NotFound`."""
        if self.failed is None:
            raise NotFound("no ingest is configured here; name its WAL to see its failed records")
        return self.failed

    async def _job(self, item: ItemId) -> Detail:
        store = await self.store(item.partition)
        letter = await store.deadletters.letter(item.channel, item.consumer, item.local)
        if letter is None:
            raise _gone(item)
        record, event = letter.record, letter.event or Event(b"", letter.record.event_id)
        more = {"abandonments": record.abandonments, "created_at": record.created_at, "token": record.token}
        found = item_of_job(letter, item.partition)
        return Detail(found, event, letter.original, record.errors, more)

    async def _failed_record(self, item: ItemId) -> Detail:
        record = await asyncio.to_thread(self.records().show, item.local)
        found = item_of_failed(record)
        event = Event(record.event_payload.encode(), record.event_id, record.source)
        return Detail(found, event, more={"status": record.status, "notes": record.resolution_notes})

    async def _message(self, item: ItemId) -> Detail:
        source = await self.stream(item)
        for message in await source.messages([item.local]):
            return Detail(await source.item(message), message.event)
        raise _gone(item)


async def _narrowed(
    store: Backend, channel: str | None, consumer: str | None, right: Right
) -> list[tuple[str | None, str | None]]:
    """Where to look, so that nothing is looked at, counted or paged that the right does not cover."""
    if right.holds(channel, consumer):
        return [(channel, consumer)]
    found: set[tuple[str | None, str | None]] = set()
    for each in await store.deadletters.counts():
        if channel in (None, each.channel) and consumer in (None, each.consumer):
            if right.holds(each.channel, consumer):
                found.add((each.channel, consumer))
            elif right.holds(each.channel, each.consumer):
                found.add((each.channel, each.consumer))
    return sorted(found, key=str)


def _gone(item: ItemId) -> NotFound:
    return NotFound(f"there is no dead letter {item}; it was requeued, purged, or never there")


def _dead(known: Consumer | None, channel: str, consumer: str, reasons: Counter[str]) -> ConsumerDead:
    return ConsumerDead(
        channel=channel,
        channel_name=(known and known.channel_display) or channel,
        consumer=consumer,
        consumer_name=(known and known.display) or consumer,
        dead=reasons.total(),
        reasons=dict(sorted(reasons.items())),
    )


def _view(cluster: Cluster, partition: int) -> ClusterView:
    sample = item_of_job(cluster.sample, partition)
    where = cluster.channel, cluster.consumer, cluster.fingerprint
    words = normalise(sample.error)
    pattern = f"{sample.error_kind}: {words}" if sample.error_kind else words
    return ClusterView(*where, cluster.count, pattern, sample)


def _joined(known: ClusterView | None, other: ClusterView) -> ClusterView:
    if known is None:
        return other
    latest = max(known, other, key=lambda each: each.sample.died_at)
    return replace(latest, count=known.count + other.count)
