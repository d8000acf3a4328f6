"""Metric families: a name, what it means and its labels, and how samples become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Labels = TypeVar("Labels", bound=tuple[str, ...])


class Family(NamedTuple):
    """A metric. A counter is exposed with `_total` behind its name, a histogram with `_bucket` and more."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    meaning: str
    labels: Sequence[str] = ()


class Counted(NamedTuple):
    """A histogram as somebody else has counted it: cumulative counts by upper bound, and the sum."""

    buckets: Sequence[tuple[float, float]]
    sum: float


def family(family: Family, samples: Mapping[Labels, float]) -> Metric:
    """A gauge or a counter with its samples, by label values."""
    make = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    metric = make(family.name, family.meaning, labels=family.labels)
    for labels, value in samples.items():
        metric.add_metric(list(labels), value)
    return metric


def histogram(family: Family, counted: Mapping[Labels, Counted]) -> Metric:
    """A histogram with what was counted, by label values."""
    metric = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, each in counted.items():
        buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in each.buckets]
        metric.add_metric(list(labels), buckets, each.sum)
    return metric


def observed(family: Family, buckets: Sequence[float]) -> Histogram:
    """A histogram that this process fills; a part's `metrics` answers what it has collected."""
    return Histogram(family.name, family.meaning, family.labels, buckets=buckets, registry=None)
