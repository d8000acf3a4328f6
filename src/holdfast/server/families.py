"""Metric families: their names, what they mean, and their labels. All of them stand in docs/operations.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Samples = Mapping[tuple[str, ...], float]


class Family(NamedTuple):
    """A metric. A counter's name is exposed with `_total` behind it."""

    name: str
    meaning: str
    labels: Sequence[str]


_CONSUMER = ("partition", "channel", "consumer")
PARTITION_UP = Family("holdfast_partition_up", "1 while the store answers.", ["partition"])
PARTITION_LIVE = Family("holdfast_partition_live_jobs", "Live jobs as last read.", ["partition"])
CHANNELS = Family("holdfast_channels", "How many channels there are.", ["partition"])
CHANNEL_EVENTS = Family("holdfast_channel_events", "Events in the log, estimated.", ["partition", "channel"])
CHANNEL_BYTES = Family("holdfast_channel_bytes", "Size of the log, estimated.", ["partition", "channel"])
JOBS = Family("holdfast_jobs", "Jobs by state, without dead letters.", [*_CONSUMER, "state"])
DEAD_LETTERS = Family("holdfast_dead_letters", "Dead letters.", _CONSUMER)
OLDEST_READY = Family(
    "holdfast_oldest_ready_timestamp_seconds", "Since when the oldest ready job waits.", _CONSUMER
)
PAUSED = Family("holdfast_consumer_paused", "1 while the consumer is paused.", _CONSUMER)
CURSOR_LAG = Family(
    "holdfast_cursor_lag_events", "Events after a stream consumer's cursor, counted up to 100,000.", _CONSUMER
)
CURSOR_OLDEST = Family(
    "holdfast_cursor_oldest_timestamp_seconds",
    "When the first event after the cursor was published.",
    _CONSUMER,
)
PART_UP = Family("holdfast_part_up", "1 while the part runs, 0 while it waits to be restarted.", ["part"])
PART_RESTARTS = Family("holdfast_part_restarts", "How often the part was restarted.", ["part"])
SWEEPS = Family("holdfast_sweeps", "Sweeps: done, skipped or failed.", ["partition", "outcome"])
SWEEPER_ACTIONS = Family("holdfast_sweeper_actions", "What sweeps did, by kind.", ["partition", "action"])
SCRAPE_FAILED = Family(
    "holdfast_scrape_failed", "1 where this scrape could not read something.", ["partition", "reading"]
)


def gauge(family: Family, samples: Samples) -> Metric:
    """A gauge with its samples, by label values."""
    metric = GaugeMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, value in samples.items():
        metric.add_metric(list(labels), value)
    return metric


def counter(family: Family, samples: Samples) -> Metric:
    """A counter with its samples, by label values."""
    metric = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
    for labels, value in samples.items():
        metric.add_metric(list(labels), value)
    return metric
