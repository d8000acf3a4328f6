"""Store metrics: what one store tells about itself at a scrape."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

from prometheus_client.core import Metric

from holdfast.bus.partitions import Partition
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput
from holdfast.model.states import LIVE
from holdfast.server import catalog as c
from holdfast.server.catalog import family
from holdfast.upkeep import schedules
from holdfast.upkeep.state import SWEEPER, get_report

log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")

FIRST, PATIENCE = 2.0, 5.0
"""How long a scrape waits for a store's time and then for the rest: below Prometheus' ten seconds."""
MOST = 500
"""Channels, or cursors, that one scrape asks a store about."""
AT_ONCE = 4
LOOKED_AT = 100
"""Schedules that one scrape reads."""


class Scraped(NamedTuple):
    """The store that is scraped, and when."""

    store: Backend
    partition: str
    namespace: str
    now: datetime

    def age(self, since: datetime | None) -> float:
        """Seconds, in the store's time."""
        return 0.0 if since is None else max(0.0, (self.now - since).total_seconds())


Reader = Callable[[Scraped], Awaitable[list[Metric]]]


async def read_store(partition: Partition, namespace: str) -> list[Metric]:
    """All metrics that the store gives in time; what fails is left out, and counted as failed."""
    name = str(partition.index)
    try:
        async with asyncio.timeout(FIRST):
            if not partition.opened or partition.health.faulty:
                return [family(c.STORE_UP, {(name,): 0})]
            scraped = Scraped(partition.backend, name, namespace, await partition.backend.now())
    except Exception as error:  # whatever it is: the other stores are exposed all the same
        log.warning("scrape: partition %s does not answer: %r", name, error)
        return [family(c.STORE_UP, {(name,): 0})]
    parts = await asyncio.gather(*(_attempt(what, read, scraped) for what, read in READERS.items()))
    failed = {(name, what): float(found is None) for what, found in zip(READERS, parts, strict=True)}
    return [
        family(c.STORE_UP, {(name,): 1}),
        family(c.PARTITION_LIVE, {(name,): partition.health.load}),
        family(c.SCRAPE_FAILED, failed),
        *(metric for found in parts for metric in found or ()),
    ]


async def _attempt(what: str, read: Reader, scraped: Scraped) -> list[Metric] | None:
    try:
        async with asyncio.timeout(PATIENCE):
            return await read(scraped)
    except Exception as error:  # one reader that fails must not hide the others
        log.warning("scrape of %s on partition %s failed: %r", what, scraped.partition, error)
        return None


async def _epoch(scraped: Scraped) -> list[Metric]:
    return [family(c.STORE_EPOCH, {(scraped.partition,): await scraped.store.epoch()})]


async def _channels(scraped: Scraped) -> list[Metric]:
    names = await scraped.store.channels.names()
    sizes = await _each(names[:MOST], scraped.store.retention.size)
    key = scraped.partition
    return [
        family(c.CHANNELS, {(key,): len(names)}),
        family(c.CHANNEL_EVENTS, {(key, name): size.events for name, size in sizes}),
        family(c.CHANNEL_BYTES, {(key, name): size.bytes for name, size in sizes}),
        family(c.LEFT_OUT, {(key, "channels"): len(names) - len(sizes)}),
    ]


async def _backlogs(scraped: Scraped) -> list[Metric]:
    found = {
        (scraped.partition, each.channel, each.consumer): each
        for each in await scraped.store.channels.backlogs(c.COUNTED)
    }
    jobs = {
        (*key, state.value): float(each.live.get(state, 0)) for key, each in found.items() for state in LIVE
    }
    ages = {key: scraped.age(each.oldest_ready) for key, each in found.items()}
    return [family(c.JOBS, jobs), family(c.OLDEST_READY, ages)]


async def _consumers(scraped: Scraped) -> list[Metric]:
    """A consumer without dead letters is exposed too, so that an alert ends and a rate begins at 0."""
    known = await scraped.store.channels.consumers()
    total: Counter[tuple[str, str]] = Counter({(each.channel, each.name): 0 for each in known})
    reasons: Counter[tuple[str, str, str, str]] = Counter()
    for each in await scraped.store.deadletters.counts():
        total[each.channel, each.consumer] += each.count
        reasons[scraped.partition, each.channel, each.consumer, each.reason] += each.count
    paused = {(scraped.partition, each.channel, each.name): each.paused for each in known}
    return [family(c.PAUSED, paused), family(c.DEAD_JOBS, total), family(c.DEAD_LETTERS, reasons)]


async def _cursors(scraped: Scraped) -> list[Metric]:
    store, cursors = scraped.store, await scraped.store.cursors.all()
    lags = {
        (scraped.partition, cursor.channel, cursor.name): lag
        for cursor, lag in await _each(
            cursors[:MOST], lambda each: store.log.behind(each.channel, each.position, c.COUNTED)
        )
    }
    return [
        family(c.CURSOR_LAG, {key: lag.events for key, lag in lags.items()}),
        family(c.CURSOR_AGE, {key: scraped.age(lag.oldest) for key, lag in lags.items()}),
        family(c.LEFT_OUT, {(scraped.partition, "cursors"): len(cursors) - len(lags)}),
    ]


async def _retention(scraped: Scraped) -> list[Metric]:
    found = await get_report(scraped.store, scraped.namespace, SWEEPER)
    if found is None:
        return []
    at, report = found
    held = {(scraped.partition, each["channel"], each["consumer"]): each for each in report["held"]}
    return [
        family(c.SWEEP_AGE, {(scraped.partition,): scraped.age(at)}),
        family(c.HELD_EVENTS, {key: each["events"] for key, each in held.items()}),
        family(c.HELD_AGE, {key: each["age_seconds"] for key, each in held.items()}),
        family(c.FULL, {(scraped.partition, channel): 1 for channel in report["full"]}),
    ]


async def _schedules(scraped: Scraped) -> list[Metric]:
    """Those that are due first, and that wait for their next try. One that cannot be read is looked past."""
    soon, prefix, overdue = scraped.now + schedules.LONGEST_RETRY, schedules.prefix(scraped.namespace), 0.0
    for record in await scraped.store.records.due(prefix, LOOKED_AT, until=soon):
        with suppress(InvalidInput):
            found = schedules.from_record(scraped.namespace, record)
            overdue = max(overdue, scraped.age(found.due_of(found.next) if found.next else None))
    return [family(c.SCHEDULE_OVERDUE, {(scraped.partition,): overdue})]


async def _each(items: Sequence[T], ask: Callable[[T], Awaitable[R]]) -> list[tuple[T, R]]:
    """Ask about each, some at once: a scrape leaves connections to others."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> tuple[T, R]:
        async with gate:
            return item, await ask(item)

    return await asyncio.gather(*map(one, items))


READERS: dict[str, Reader] = {
    "epoch": _epoch,
    "channels": _channels,
    "backlogs": _backlogs,
    "consumers": _consumers,
    "cursors": _cursors,
    "retention": _retention,
    "schedules": _schedules,
}
