"""Metrics: read at the moment of the scrape, from the stores, the drivers' reports and this process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.bus.client import Bus
from holdfast.bus.spool import Spool
from holdfast.contracts import Applied
from holdfast.model.errors import InvalidInput
from holdfast.server import catalog as c
from holdfast.server.catalog import Family, family
from holdfast.server.pipeline_port import DriverReport, read_drivers
from holdfast.server.store_metrics import PATIENCE, read_store
from holdfast.server.supervisor import Measured, Phase, Supervisor

log = logging.getLogger(__name__)

_WAL: dict[Family, str] = {
    c.WAL_WRITES: "writes",
    c.WAL_CONFIRMS: "confirms",
    c.WAL_RETRIES: "retries",
    c.WAL_FAILURES: "failures",
    c.WAL_RECOVERIES: "recoveries",
    c.WAL_PENDING: "pending_entries",
    c.WAL_BYTES: "bytes",
    c.WAL_LIMIT: "limit_bytes",
    c.WAL_OLDEST: "oldest_seconds",
    c.WAL_READY: "ready",
    c.UNLOADED: "unloaded_seconds",
}


class Collected(Collector):
    """What one scrape found: a family that came from several sources is exposed once."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._families: dict[str, Metric] = {}
        for metric in found:
            self._families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)
        if c.DEAD_JOBS.name in self._families:
            _add_up(self._families[c.DEAD_JOBS.name])

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


async def scrape(bus: Bus, supervisor: Supervisor, namespace: str) -> bytes:
    """Everything, in Prometheus' text format. Stores are read at once, each for a few seconds at most."""
    stores, pipeline = await asyncio.gather(
        asyncio.gather(*(read_store(each, namespace) for each in bus.partitions.all)),
        _read_pipeline(bus, namespace),
    )
    found = [metric for store in stores for metric in store]
    registry = CollectorRegistry()
    registry.register(Collected([*found, *pipeline, *_service_metrics(supervisor), *bus_metrics(bus)]))
    return generate_latest(registry)


async def _read_pipeline(bus: Bus, namespace: str) -> list[Metric]:
    """Drivers report to the first store; while it is away there is nothing to tell of them."""
    first = bus.partitions.all[0]
    if not first.opened or first.health.faulty:
        return []
    try:
        async with asyncio.timeout(PATIENCE):
            found = await read_drivers(first.backend, namespace)
    except Exception as error:  # the rest is exposed all the same
        log.warning("scrape of the pipeline's reports failed: %r", error)
        return [family(c.SCRAPE_FAILED, {("0", "pipeline"): 1})]
    return [*_driver_metrics(found), family(c.SCRAPE_FAILED, {("0", "pipeline"): 0})]


def _driver_metrics(found: dict[str, DriverReport]) -> list[Metric]:
    reports = {(name,): each.report for name, each in found.items()}
    channels = {
        (*name, channel): totals
        for name, report in reports.items()
        for channel, totals in report["channels"].items()
    }
    since = {
        (name,): each.age + each.report["last_batch_seconds"]
        for name, each in found.items()
        if each.report["last_batch_seconds"] is not None
    }
    return [
        family(c.DRIVER_UP, {(name,): each.trouble is None for name, each in found.items()}),
        family(c.DRIVER_AGE, {(name,): each.age for name, each in found.items()}),
        family(c.DRIVER_FAILURES, {key: report["failures"] for key, report in reports.items()}),
        family(c.BATCHES, {key: report["batches"] for key, report in reports.items()}),
        family(c.ROWS, {key: totals["rows"] for key, totals in channels.items()}),
        family(c.BYTES, {key: totals["bytes"] for key, totals in channels.items()}),
        _batch_seconds(reports),
        family(c.LAST_BATCH, since),
        *(_wal_metrics(found["ingest"].report["wal"]) if "ingest" in found else ()),
    ]


def _batch_seconds(reports: dict[tuple[str], dict[str, Any]]) -> Metric:
    """The drivers' own histograms."""
    name, _, meaning, labels = c.BATCH_SECONDS
    metric = HistogramMetricFamily(name, meaning, labels=labels)
    for key, report in reports.items():
        counted = report["seconds"]
        bounds = [*map(str, counted["bounds"]), "+Inf"]
        metric.add_metric(key, list(zip(bounds, counted["counts"], strict=True)), counted["sum"])
    return metric


def _wal_metrics(wal: dict[str, Any]) -> list[Metric]:
    states = {(state,): wal[f"{state}_batches"] for state in ("pending", "failed", "quarantined")}
    return [
        *(family(each, {(): wal[field]}) for each, field in _WAL.items()),
        family(c.WAL_BATCHES, states),
        family(c.FRESHNESS, {} if wal["freshness_seconds"] is None else {(): wal["freshness_seconds"]}),
    ]


def _service_metrics(supervisor: Supervisor) -> list[Metric]:
    services = {(each.service.name,): each for each in supervisor.services}
    return [
        family(c.PART_UP, {name: each.phase is Phase.RUNNING for name, each in services.items()}),
        family(c.PART_RESTARTS, {name: each.restarts for name, each in services.items()}),
        *(
            metric
            for each in supervisor.services
            if isinstance(each.service, Measured)
            for metric in each.service.metrics()
        ),
    ]


def bus_metrics(bus: Bus) -> list[Metric]:
    """What went through this process' bus, and what its steps of the lifecycle did. Asks no store."""
    moves = {
        (str(each.index), name): each.moves[name] for each in bus.partitions.all for name in Applied.__slots__
    }
    ticks = {
        (str(each.index), name): each.ticks.counts[name]
        for each in bus.partitions.all
        for name in ("fired", "skipped", "failed")
    }
    # Copies, since a worker's counts are read from another thread while it goes on.
    errors = {
        (str(each.index), *what): count
        for each in bus.partitions.all
        for what, count in dict(each.errors).items()
    }
    return [
        family(c.ATTEMPTS, dict(bus.counters.attempts)),
        family(c.SETTLED, dict(bus.counters.outcomes)),
        family(c.MOVES, moves),
        family(c.TICKS, ticks),
        family(c.STORE_ERRORS, errors),
        *_spool_metrics(bus.spool),
    ]


def _spool_metrics(spool: Spool | None) -> list[Metric]:
    """Without samples where there is no spool."""
    refused = {} if spool is None else {(by,): count for by, count in spool.refused.items()}
    return [
        family(c.SPOOL_EVENTS, {} if spool is None else {(): len(spool)}),
        family(c.SPOOL_BYTES, {} if spool is None else {(): spool.size}),
        family(c.SPOOL_AGE, {} if spool is None else {(): spool.oldest_age}),
        family(c.SPOOL_REFUSED, refused),
    ]


@contextmanager
def serve(bus: Bus, port: int) -> Iterator[int]:
    """Serve Prometheus on this machine's loopback for the length of a block; yields the port."""
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
