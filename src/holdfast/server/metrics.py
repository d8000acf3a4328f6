"""Metrics: read at the moment of the scrape, from the stores and from the parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast.bus.client import Bus
from holdfast.bus.spool import Spool
from holdfast.contracts import Applied
from holdfast.model.errors import InvalidInput
from holdfast.server.catalog import (
    ATTEMPTS,
    DEAD_JOBS,
    MOVES,
    PART_RESTARTS,
    PART_UP,
    SCRAPE_FAILED,
    SETTLED,
    SPOOL_AGE,
    SPOOL_BYTES,
    SPOOL_EVENTS,
    SPOOL_REFUSED,
    STORE_ERRORS,
)
from holdfast.server.drivers import read_pipeline
from holdfast.server.families import family
from holdfast.server.reading import PATIENCE, read_store
from holdfast.server.supervisor import Phase, Supervisor

log = logging.getLogger(__name__)


class Collected(Collector):
    """What one scrape found: a family that came from several sources is exposed once."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._families: dict[str, Metric] = {}
        for metric in found:
            self._families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)
        if DEAD_JOBS.name in self._families:
            _add_up(self._families[DEAD_JOBS.name])

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


async def scrape(bus: Bus, supervisor: Supervisor, namespace: str) -> bytes:
    """Everything, in Prometheus' text format. Stores are read at once, each for a few seconds at most."""
    stores, pipeline = await asyncio.gather(
        asyncio.gather(*(read_store(each, namespace) for each in bus.partitions.all)),
        _pipeline(bus, namespace),
    )
    registry = CollectorRegistry()
    registry.register(
        Collected(
            [*(m for store in stores for m in store), *pipeline, *_parts(supervisor), *bus_metrics(bus)]
        )
    )
    return generate_latest(registry)


async def _pipeline(bus: Bus, namespace: str) -> list[Metric]:
    """Drivers report to the first store; while it is away there is nothing to tell of them."""
    first = bus.partitions.all[0]
    if not first.opened or first.health.faulty:
        return []
    try:
        async with asyncio.timeout(PATIENCE):
            found = await read_pipeline(first.backend, namespace)
    except Exception as error:  # the rest is told all the same
        log.warning("scrape of the pipeline's reports failed: %r", error)
        return [family(SCRAPE_FAILED, {("0", "pipeline"): 1})]
    return [*found, family(SCRAPE_FAILED, {("0", "pipeline"): 0})]


def _parts(supervisor: Supervisor) -> list[Metric]:
    kept = {(each.part.name,): each for each in supervisor.kept}
    return [
        family(PART_UP, {name: each.phase is Phase.RUNNING for name, each in kept.items()}),
        family(PART_RESTARTS, {name: each.restarts for name, each in kept.items()}),
        *(metric for each in supervisor.kept for metric in each.part.metrics()),
    ]


def bus_metrics(bus: Bus) -> list[Metric]:
    """What went through this process' bus, and what its steps of the lifecycle did. Asks no store."""
    moves = {
        (str(each.index), name): each.moves[name] for each in bus.partitions.all for name in Applied.__slots__
    }
    # Copies, since a worker's counts are told from another thread while it goes on.
    errors = {
        (str(each.index), *what): count
        for each in bus.partitions.all
        for what, count in dict(each.errors).items()
    }
    return [
        family(ATTEMPTS, dict(bus.tally.attempts)),
        family(SETTLED, dict(bus.tally.settled)),
        family(MOVES, moves),
        family(STORE_ERRORS, errors),
        *_spool_metrics(bus.spool),
    ]


def _spool_metrics(spool: Spool | None) -> list[Metric]:
    """Without samples where there is no spool."""
    refused = {} if spool is None else {(by,): count for by, count in spool.refused.items()}
    return [
        family(SPOOL_EVENTS, {} if spool is None else {(): len(spool)}),
        family(SPOOL_BYTES, {} if spool is None else {(): spool.size}),
        family(SPOOL_AGE, {} if spool is None else {(): spool.oldest_age}),
        family(SPOOL_REFUSED, refused),
    ]


@contextmanager
def serve(bus: Bus, port: int) -> Iterator[int]:
    """Answer Prometheus on this machine's loopback for the length of a block; answers the port."""
    registry = CollectorRegistry()
    registry.register(_OfBus(bus))
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"cannot answer metrics on 127.0.0.1 port {port}: {error}; choose another"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _OfBus(Collector):
    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    def collect(self) -> Iterator[Metric]:
        yield from bus_metrics(self._bus)


def _empty(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type)


def _add_up(metric: Metric) -> None:
    """One sample for what several stores share."""
    total: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in metric.samples:
        key = tuple(sample.labels.items())
        total[key] = total.get(key, 0) + sample.value
    metric.samples.clear()
    for labels, value in total.items():
        metric.add_sample(metric.name, dict(labels), value)
