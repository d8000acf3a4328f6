"""Metrics of a running ingest, on a port of its driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from holdfast.pipeline.loader.results import Recovery, Result
from holdfast.pipeline.wal import Batch

_ROWS = (10, 100, 1_000, 10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)


class IngestMetrics:
    """Counts since the driver started, in entries: an entry is one event in the WAL."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.writes = counter("consumer_wal_writes", "Entries written to the WAL")
        self.confirms = counter("consumer_wal_confirms", "Entries that the warehouse has")
        self.retries = counter("consumer_wal_retries", "Entries of attempts that failed")
        self.failures = counter("consumer_wal_failures", "Entries that failed for good")
        self.repairs = counter("consumer_wal_repairs", "Entries of damaged batches that were staged anew")
        self.recoveries = counter("consumer_wal_recoveries", "Entries recovered at a start")
        self.pending = gauge("consumer_wal_pending_entries", "Entries that wait for the warehouse")
        self.pending_batches = gauge("consumer_wal_pending_batches", "Batches that wait for the warehouse")
        spot = ("partition", "channel")
        self.lag_events = gauge("holdfast_ingest_lag_events", "Events not yet in the WAL", spot)
        self.lag_seconds = gauge("holdfast_ingest_lag_seconds", "Age of the first of them", spot)
        self.freshness = histogram(
            "holdfast_ingest_freshness_seconds",
            "From the acknowledgement of a batch's first event to its rows",
            buckets=_SECONDS,
        )
        self.unloaded = gauge(
            "holdfast_ingest_unloaded_seconds",
            "Age of the oldest event without a row, in the WAL or before it",
        )
        self.batch_rows = histogram("holdfast_ingest_batch_rows", "Events of a batch", buckets=_ROWS)
        self.seconds = histogram("holdfast_ingest_seconds", "Time per batch", ("step",), buckets=_SECONDS)

    @contextmanager
    def serve(self, port: int) -> Iterator[int]:
        """Answer Prometheus on this machine's loopback for the length of a block; answers the port."""
        server, thread = start_http_server(port, "127.0.0.1", self.registry)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def committed(self, batch: Batch) -> None:
        """A batch became pending."""
        self.writes.inc(batch.rows)
        self.batch_rows.observe(batch.rows)

    def settled(self, batch: Batch, result: Result, failed: int) -> None:
        """The loader is done with a batch for now; `failed` of its entries failed by themselves."""
        match result:
            case Result.LOADED | Result.ALREADY:
                self.confirms.inc(batch.rows - failed)
                self.failures.inc(failed)
            case Result.RETRY:
                self.retries.inc(batch.rows)
            case Result.EXPIRED | Result.FAILED:
                self.failures.inc(batch.rows)
            case Result.HELD | Result.WAITING | Result.QUARANTINED:
                return

    def recovered(self, found: Recovery) -> None:
        """A start is over."""
        self.recoveries.inc(found.recovered + found.already_committed)
