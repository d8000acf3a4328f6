"""The catalog: every metric family of `/metrics`, by group, with what a scrape of it costs.

`docs/metrics.md` is written from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Kind = Literal["gauge", "counter", "histogram"]
Labels = TypeVar("Labels", bound=tuple[str, ...])


class Family(NamedTuple):
    """A metric. A counter is exposed with `_total` behind its name, a histogram with `_bucket` and more."""

    name: str
    kind: Kind
    meaning: str
    labels: Sequence[str] = ()


class MetricGroup:
    """Families that are read together, and what that costs."""

    def __init__(self, title: str, cost: str) -> None:
        self.title, self.cost = title, cost
        self.families: list[Family] = []

    def add(self, name: str, kind: Kind, meaning: str, labels: Sequence[str] = ()) -> Family:
        """A new family of this group."""
        self.families.append(Family(name, kind, meaning, labels))
        return self.families[-1]


def family(family: Family, samples: Mapping[Labels, float]) -> Metric:
    """A gauge or a counter with its samples, by label values."""
    make = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    metric = make(family.name, family.meaning, labels=family.labels)
    for labels, value in samples.items():
        metric.add_metric(list(labels), value)
    return metric


def observed(family: Family, buckets: Sequence[float]) -> Histogram:
    """A histogram that this process fills; a service's `metrics` returns what it has collected."""
    return Histogram(family.name, family.meaning, family.labels, buckets=buckets, registry=None)


COUNTED = 100_000
"""How far a store counts what it has no counter for."""
_CHANNEL = ("partition", "channel")
_CONSUMER = ("partition", "channel", "consumer")

STORES = MetricGroup(
    "Stores",
    "Each store is asked for its time, its epoch, its channels and the size of each, which is an "
    "estimate that it keeps.",
)
STORE_UP = STORES.add("holdfast_store_up", "gauge", "1 while the store answers.", ["partition"])
STORE_EPOCH = STORES.add(
    "holdfast_store_epoch",
    "gauge",
    "The store's epoch. It rises when its server was restored, replaced or promoted: what was acknowledged "
    "last before that may be missing.",
    ["partition"],
)
SCRAPE_FAILED = STORES.add(
    "holdfast_scrape_failed",
    "gauge",
    "1 where this scrape could not read something in time.",
    ["partition", "reading"],
)
LEFT_OUT = STORES.add(
    "holdfast_scrape_left_out",
    "gauge",
    "Channels or cursors beyond the first 500, which a scrape does not look at.",
    ["partition", "reading"],
)
PARTITION_LIVE = STORES.add(
    "holdfast_partition_live_jobs", "gauge", "Live jobs as the lifecycle last read them.", ["partition"]
)
CHANNELS = STORES.add("holdfast_channels", "gauge", "How many channels there are.", ["partition"])
CHANNEL_EVENTS = STORES.add("holdfast_channel_events", "gauge", "Events in the log, estimated.", _CHANNEL)
CHANNEL_BYTES = STORES.add("holdfast_channel_bytes", "gauge", "Size of the log, estimated.", _CHANNEL)

WORKERS = MetricGroup(
    "Worker consumers",
    "Three calls for each store: consumers, backlogs and dead counts. Dead letters come from the "
    "summary and cost the same for one and for millions. Redis and NATS have counters for live jobs; "
    "PostgreSQL counts index entries, up to 100,000 (some 30 ms for a consumer with so many).",
)
DEAD_JOBS = WORKERS.add(
    "dead_job_count",
    "gauge",
    "Dead letters of a consumer, exact, over all stores that answer.",
    ["channel", "consumer"],
)
DEAD_LETTERS = WORKERS.add(
    "holdfast_dead_letters", "gauge", "Dead letters by the reason why they died.", [*_CONSUMER, "reason"]
)
JOBS = WORKERS.add(
    "holdfast_jobs",
    "gauge",
    "Live jobs: `ready`, `leased` (in flight) or `scheduled`. PostgreSQL counts up to 100,000: ready ones of "
    "each consumer, the others of all together.",
    [*_CONSUMER, "state"],
)
OLDEST_READY = WORKERS.add(
    "holdfast_oldest_ready_age_seconds",
    "gauge",
    "How long the oldest ready job has been due; 0: none is ready.",
    _CONSUMER,
)
PAUSED = WORKERS.add("holdfast_consumer_paused", "gauge", "1 while the consumer is paused.", _CONSUMER)

STREAMS = MetricGroup(
    "Stream consumers",
    "One call for all cursors and one for each, which counts at most 100,000 entries of the log's index.",
)
CURSOR_LAG = STREAMS.add(
    "holdfast_cursor_lag_events",
    "gauge",
    "Events after a stream consumer's cursor, counted up to 100,000.",
    _CONSUMER,
)
CURSOR_AGE = STREAMS.add(
    "holdfast_cursor_lag_seconds", "gauge", "Age of the first of them; 0: it is at the end.", _CONSUMER
)

RETENTION = MetricGroup(
    "Retention",
    "One state record for each store, which whoever sweeps leaves there: every instance tells the same.",
)
SWEEP_AGE = RETENTION.add(
    "holdfast_sweep_age_seconds", "gauge", "How long ago the last sweep ended, whoever swept.", ["partition"]
)
HELD_EVENTS = RETENTION.add(
    "holdfast_trim_held_events",
    "gauge",
    "Events past their age that this consumer kept from being trimmed in the last sweep.",
    _CONSUMER,
)
HELD_AGE = RETENTION.add(
    "holdfast_trim_held_age_seconds", "gauge", "Age of the oldest of them then.", _CONSUMER
)
FULL = RETENTION.add(
    "holdfast_channel_full", "gauge", "1 for a channel that refuses publishes for its size.", _CHANNEL
)

SCHEDULES = MetricGroup("Schedules", "One call for each store: up to 100 schedules that are due.")
SCHEDULE_OVERDUE = SCHEDULES.add(
    "holdfast_schedules_overdue_seconds",
    "gauge",
    "For how long a tick has been due that nobody has published; 0: there is none.",
    ["partition"],
)

PIPELINE = MetricGroup(
    "Pipeline",
    "One state record for each driver, on the first store. The driver writes it after a batch, at most "
    "once a second, and otherwise every ten. Counters begin anew with the driver.",
)
DRIVER_UP = PIPELINE.add(
    "holdfast_driver_up",
    "gauge",
    "1 while the driver (`archive` or `ingest`) reports in time and does not fail.",
    ["driver"],
)
DRIVER_AGE = PIPELINE.add(
    "holdfast_driver_report_age_seconds", "gauge", "How long ago the driver reported.", ["driver"]
)
DRIVER_FAILURES = PIPELINE.add(
    "holdfast_driver_failures", "counter", "How often the driver had to start anew.", ["driver"]
)
BATCHES = PIPELINE.add("holdfast_pipeline_batches", "counter", "Batches that were committed.", ["driver"])
ROWS = PIPELINE.add(
    "holdfast_pipeline_rows",
    "counter",
    "Events that were archived or written to the WAL.",
    _DRIVEN := ["driver", "channel"],
)
BYTES = PIPELINE.add("holdfast_pipeline_bytes", "counter", "Bytes that were written for them.", _DRIVEN)
BATCH_SECONDS = PIPELINE.add("holdfast_pipeline_batch_seconds", "histogram", "Time per batch.", ["driver"])
LAST_BATCH = PIPELINE.add(
    "holdfast_pipeline_last_batch_age_seconds",
    "gauge",
    "How long ago the last batch was committed.",
    ["driver"],
)

WAL = MetricGroup(
    "Consumer WAL", "From the record of `ingest`, which looks at its WAL every five seconds at the most."
)
WAL_WRITES = WAL.add("consumer_wal_writes", "counter", "Entries written to the WAL.")
WAL_CONFIRMS = WAL.add("consumer_wal_confirms", "counter", "Entries that the warehouse has.")
WAL_RETRIES = WAL.add("consumer_wal_retries", "counter", "Entries of attempts that failed.")
WAL_FAILURES = WAL.add("consumer_wal_failures", "counter", "Entries that failed for good.")
WAL_RECOVERIES = WAL.add("consumer_wal_recoveries", "counter", "Entries recovered at a start.")
WAL_PENDING = WAL.add("consumer_wal_pending_entries", "gauge", "Entries that wait for the warehouse.")
WAL_BATCHES = WAL.add(
    "holdfast_wal_batches", "gauge", "Batches that are `pending`, `failed` or `quarantined`.", ["state"]
)
WAL_BYTES = WAL.add("holdfast_wal_bytes", "gauge", "Bytes that wait for the warehouse.")
WAL_LIMIT = WAL.add("holdfast_wal_limit_bytes", "gauge", "At how many the ingest waits for the loader.")
WAL_OLDEST = WAL.add("holdfast_wal_oldest_age_seconds", "gauge", "How long the oldest pending batch waits.")
WAL_READY = WAL.add(
    "holdfast_wal_ready", "gauge", "1 while it takes events, nothing in it is damaged, and rows are fresh."
)
FRESHNESS = WAL.add(
    "holdfast_warehouse_freshness_seconds",
    "gauge",
    "What the last batch took from the acknowledgement of its first event to its rows.",
)
UNLOADED = WAL.add(
    "holdfast_warehouse_unloaded_seconds",
    "gauge",
    "Age of the oldest event without a row, in the WAL or not yet read; 0: all have theirs.",
)

PROCESS = MetricGroup(
    "This process",
    "Counted in memory since the process began; the store is not asked. Sum them over instances. "
    "Attempts and how they ended are those that went through this process: through REST here, and a "
    "worker's own with `holdfast worker --metrics-port`. Only a process with a spool tells of one.",
)
PART_UP = PROCESS.add(
    "holdfast_part_up", "gauge", "1 while the part runs, 0 while it waits to be restarted.", ["part"]
)
PART_RESTARTS = PROCESS.add(
    "holdfast_part_restarts", "counter", "How often the part was restarted.", ["part"]
)
SWEEPS = PROCESS.add(
    "holdfast_sweeps",
    "counter",
    "Sweeps: `done`, `skipped` (another sweeper was at work) or `failed`.",
    ["partition", "outcome"],
)
SWEEP_SECONDS = PROCESS.add(
    "holdfast_sweep_seconds", "histogram", "Time per sweep that was done.", ["partition"]
)
SWEEPER_ACTIONS = PROCESS.add(
    "holdfast_sweeper_actions", "counter", "What sweeps did, by kind.", ["partition", "action"]
)
MOVES = PROCESS.add(
    "holdfast_lifecycle_moves",
    "counter",
    "Jobs that a step of the lifecycle `promoted`, `abandoned`, `buried` or `backfilled`, or left as they "
    "were because they had changed since (`refused`).",
    ["partition", "move"],
)
TICKS = PROCESS.add(
    "holdfast_schedule_ticks",
    "counter",
    "Ticks of schedules that this process published first (`fired`) or left out as missed (`skipped`, "
    "counted up to 1,000 at a time), and tries to publish some that `failed`.",
    ["partition", "outcome"],
)
ATTEMPTS = PROCESS.add(
    "holdfast_attempts", "counter", "Jobs that were handed out, each an attempt.", ["channel", "consumer"]
)
SETTLED = PROCESS.add(
    "holdfast_settled",
    "counter",
    "How attempts ended: `done`, `failed` (to be tried again), `buried`, `given_back`, `cancelled` "
    "(somebody cancelled the job while it ran), or `lost`: their lease was gone.",
    ["channel", "consumer", "outcome"],
)
STORE_ERRORS = PROCESS.add(
    "holdfast_store_errors",
    "counter",
    "Calls of a store that failed in a way that is not documented, or were not answered (`Unavailable`), "
    "by verb (`claim`, `complete`, `retry`, `bury`, `extend`, `consumer`, `publish`, `lifecycle`, `sweep`, "
    "`schedules`, `fold`, `listen`, `open`, `subscribe`) and class of error. Whoever made the call goes on.",
    ["partition", "verb", "error"],
)
SPOOL_EVENTS = PROCESS.add(
    "holdfast_spool_events", "gauge", "Events in the spool that no store has taken yet."
)
SPOOL_BYTES = PROCESS.add("holdfast_spool_bytes", "gauge", "Bytes of the events that wait in the spool.")
SPOOL_AGE = PROCESS.add(
    "holdfast_spool_oldest_age_seconds",
    "gauge",
    "For how long the oldest of them has been waiting; 0: the spool is empty.",
)
SPOOL_REFUSED = PROCESS.add(
    "holdfast_spool_refused",
    "counter",
    "Events that were refused: by the spool, being `full`, to their publisher; by the `store`, for good, and "
    "set aside in the file `refused`; or as `damaged`, and set aside in the file `damaged`.",
    ["by"],
)
REQUESTS = PROCESS.add(
    "holdfast_http_requests",
    "counter",
    "Requests by route (its template, never the path), method and status.",
    ["route", "method", "status"],
)
REQUEST_SECONDS = PROCESS.add(
    "holdfast_http_request_seconds", "histogram", "Time until the answer begins.", ["route", "method"]
)

GROUPS = (STORES, WORKERS, STREAMS, RETENTION, SCHEDULES, PIPELINE, WAL, PROCESS)
