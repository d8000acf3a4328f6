"""Readings: what one store tells about itself when somebody scrapes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from prometheus_client.core import Metric

from holdfast.bus.partitions import Partition
from holdfast.contracts import Backend, Consumer, ConsumerStats
from holdfast.model.job import LIVE, State
from holdfast.model.log import Lag
from holdfast.model.upkeep import Cursor, Size
from holdfast.server import families as f
from holdfast.server.families import gauge

log = logging.getLogger(__name__)

PATIENCE = 5.0
COUNTED = 100_000
Read = Callable[[Backend, str], Awaitable[list[Metric]]]


async def read_store(partition: Partition) -> list[Metric]:
    """Everything that the store answers. What it does not answer is missing, and said to be."""
    name, up = str(partition.index), partition.opened and not partition.health.faulty
    found = [
        gauge(f.PARTITION_UP, {(name,): up}),
        gauge(f.PARTITION_LIVE, {(name,): partition.health.load} if up else {}),
    ]
    failed: dict[tuple[str, ...], float] = {}
    for what, read in READINGS.items():
        try:
            if not up:
                break
            async with asyncio.timeout(PATIENCE):
                found += await read(partition.backend, name)
            failed[name, what] = 0
        except Exception as error:  # one reading that fails must not hide the others
            log.warning("scrape of %s on partition %s failed: %r", what, name, error)
            failed[name, what] = 1
    return [*found, gauge(f.SCRAPE_FAILED, failed)]


async def _channels(store: Backend, partition: str) -> list[Metric]:
    sizes: dict[str, Size] = {channel: await store.size(channel) for channel in await store.channels()}
    return [
        gauge(f.CHANNELS, {(partition,): len(sizes)}),
        gauge(f.CHANNEL_EVENTS, {(partition, name): size.events for name, size in sizes.items()}),
        gauge(f.CHANNEL_BYTES, {(partition, name): size.bytes for name, size in sizes.items()}),
    ]


async def _consumers(store: Backend, partition: str) -> list[Metric]:
    found = [(each, await store.consumer_stats(each.channel, each.name)) for each in await store.consumers()]
    return list(_jobs(found, partition))


def _jobs(found: Sequence[tuple[Consumer, ConsumerStats]], partition: str) -> Iterator[Metric]:
    stats = {(partition, consumer.channel, consumer.name): each for consumer, each in found}
    yield gauge(
        f.JOBS,
        {
            (*labels, state.value): each.states.get(state, 0)
            for labels, each in stats.items()
            for state in State
            if state is not State.DEAD and (state in LIVE or state in each.states)
        },
    )
    yield gauge(f.DEAD_LETTERS, {key: each.states.get(State.DEAD, 0) for key, each in stats.items()})
    waiting = {key: each.oldest_ready for key, each in stats.items()}
    yield gauge(f.OLDEST_READY, {key: since.timestamp() for key, since in waiting.items() if since})
    yield gauge(f.PAUSED, {(partition, each.channel, each.name): each.paused for each, _ in found})


async def _cursors(store: Backend, partition: str) -> list[Metric]:
    lags: dict[tuple[str, ...], Lag] = {}
    cursors: list[Cursor] = await store.cursors()
    for cursor in cursors:
        lag = await store.behind(cursor.channel, cursor.position, COUNTED)
        lags[partition, cursor.channel, cursor.name] = lag
    oldest = {key: lag.oldest for key, lag in lags.items()}
    return [
        gauge(f.CURSOR_LAG, {key: lag.events for key, lag in lags.items()}),
        gauge(f.CURSOR_OLDEST, {key: since.timestamp() for key, since in oldest.items() if since}),
    ]


READINGS: dict[str, Read] = {"channels": _channels, "consumers": _consumers, "cursors": _cursors}
