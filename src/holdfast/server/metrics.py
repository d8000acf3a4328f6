"""Metrics: read at the moment of the scrape, from the stores and from the parts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from holdfast.bus.partitions import Partitions
from holdfast.server.families import PART_RESTARTS, PART_UP, counter, gauge
from holdfast.server.reading import read_store
from holdfast.server.supervisor import Phase, Supervisor


class _Collected(Collector):
    """What one scrape found: a family that came from several sources is exposed once."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._families: dict[str, Metric] = {}
        for metric in found:
            self._families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()


async def scrape(partitions: Partitions, supervisor: Supervisor) -> bytes:
    """Everything, in Prometheus' text format."""
    stores = await asyncio.gather(*(read_store(partition) for partition in partitions.all))
    registry = CollectorRegistry()
    registry.register(_Collected([metric for store in stores for metric in store] + _parts(supervisor)))
    return generate_latest(registry)


def _parts(supervisor: Supervisor) -> list[Metric]:
    kept = {(each.part.name,): each for each in supervisor.kept}
    return [
        gauge(PART_UP, {name: each.phase is Phase.RUNNING for name, each in kept.items()}),
        counter(PART_RESTARTS, {name: each.restarts for name, each in kept.items()}),
        *(metric for each in supervisor.kept for metric in each.part.metrics()),
    ]


def _empty(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type)
