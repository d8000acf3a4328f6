"""What can be seen of a running ingest: its metrics, on a port of its driver, its freshness, and its report
of the WAL, so that nobody else needs access to it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from holdfast.contracts import Backend
from holdfast.model.duration import format_duration
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.loader.decisions import Recovery, Result
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.wal import Wal, WalBatch
from holdfast.pipeline.wal.status import WalHealth, health
from holdfast.upkeep.announcements import Alert, raise_alert

log = logging.getLogger(__name__)
_ROWS = (10, 100, 1_000, 10_000, 50_000, 100_000, 250_000, 500_000, 1_000_000)
_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)
MEASURE_EVERY, _COUNTED = 30.0, 1_000_000
REPORT_EVERY = 5.0
"""A look lists the WAL's names and reads its pending batches: not for every report."""
_COUNTERS = ("writes", "confirms", "retries", "failures", "recoveries")


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
        """Serve Prometheus on this machine's loopback for the length of a block; yields the port."""
        server, thread = start_http_server(port, "127.0.0.1", self.registry)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def committed(self, batch: WalBatch) -> None:
        """A batch became pending."""
        self.writes.inc(batch.rows)
        self.batch_rows.observe(batch.rows)

    def count_result(self, batch: WalBatch, result: Result, failed: int) -> None:
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


class Freshness:
    """Of one ingest. Times are those of the stores: this machine's clock is compared with them."""

    def __init__(self, metrics: IngestMetrics, namespace: str, limit: timedelta) -> None:
        self._metrics, self._namespace, self.limit = metrics, namespace, limit
        self._looked, self._ahead = -MEASURE_EVERY, timedelta(0)
        self._waiting: dict[ChannelPartition, datetime] = {}
        """Since when the first event of each channel waits that is not in the WAL."""
        self._pending: dict[str, datetime] = {}
        """Since when the first event of each pending batch waits."""
        self.seconds: float | None = None
        """What the last batch took, from the acknowledgement of its first event."""

    def committed(self, batch: WalBatch) -> None:
        """A batch became pending."""
        if (since := _since(batch)) is not None:
            self._pending[batch.name] = since
        for part in batch.parts:
            self._waiting.pop(part.spot, None)

    def loaded(self, batch: WalBatch) -> None:
        """A batch is in the warehouse."""
        self._pending.pop(batch.name, None)
        if (since := _since(batch)) is not None:
            self.seconds = max(0.0, (self._now() - since).total_seconds())
            self._metrics.freshness.observe(self.seconds)

    def found(self, pending: Sequence[WalBatch]) -> None:
        """These are pending, and no others."""
        waits = {batch.name: _since(batch) or batch.created_at for batch in pending}
        self._pending = {name: self._pending.get(name, since) for name, since in waits.items()}

    @property
    def oldest(self) -> float:
        """The age of the oldest event that is known to have no row yet, in seconds."""
        waits = [*self._waiting.copy().values(), *self._pending.copy().values()]
        return max(0.0, (self._now() - min(waits)).total_seconds()) if waits else 0.0

    @property
    def late(self) -> bool:
        """Whether that is over the limit."""
        return self.oldest > self.limit.total_seconds()

    def look(self, connection: Connection) -> None:
        """Measure what is not in the WAL yet, if it is time to, and raise an alert where it is too late."""
        if time.monotonic() - self._looked < MEASURE_EVERY:
            return
        self._looked = time.monotonic()
        try:
            self._waiting = connection.run(self._measure(connection.backends))
            self._metrics.unloaded.set(self.oldest)
            if self.late:
                connection.run(raise_alert(connection.backends[0], self._namespace, self._alert()))
        except HoldfastError as error:
            log.warning("the lag could not be measured: %s", error)

    async def _measure(self, backends: Sequence[Backend]) -> dict[ChannelPartition, datetime]:
        found: dict[ChannelPartition, datetime] = {}
        for place, backend in enumerate(backends):
            now = await backend.now()
            self._ahead = now - datetime.now(UTC) if place == 0 else self._ahead
            cursors = [cursor for cursor in await backend.cursors.all() if cursor.name == CONSUMER]
            after = {cursor.channel: cursor.position for cursor in cursors}
            for channel, lag in (await backend.log.waiting(after, _COUNTED)).items():
                age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
                self._metrics.lag_events.labels(place, channel).set(lag.rows)
                self._metrics.lag_seconds.labels(place, channel).set(age)
                if lag.oldest is not None:
                    found[ChannelPartition(place, channel)] = lag.oldest
        return found

    def _alert(self) -> Alert:
        age, batches = self.oldest, len(self._pending)
        return Alert(
            kind="lag",
            message=f"the warehouse is {age:.0f} s behind, with {batches} batches pending; "
            "look at the ingest's log, and whether the warehouse takes rows",
            consumer=CONSUMER,
            count=batches,
            age_seconds=age,
        )

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._ahead


def _since(batch: WalBatch) -> datetime | None:
    """When its first event was published."""
    return min((datetime.fromisoformat(part.since) for part in batch.parts if part.since), default=None)


class WalReport:
    """The WAL's counters as they are, its health as of the last look."""

    def __init__(self, wal: Wal, metrics: IngestMetrics, freshness: Freshness) -> None:
        self._wal, self._metrics, self._freshness = wal, metrics, freshness
        self._health: WalHealth | None = None
        self._looked, self._trouble = -REPORT_EVERY, ""

    def __call__(self) -> dict[str, Any]:
        """The part `wal` of a report."""
        if time.monotonic() - self._looked >= REPORT_EVERY:
            self._look()
        return {"wal": self._counted() | self._known()}

    def _look(self) -> None:
        self._looked = time.monotonic()
        try:
            self._health, self._trouble = health(self._wal), ""
        except Exception as error:  # whatever its store says, the report tells it
            self._trouble = f"it cannot be read: {error}"

    def _counted(self) -> dict[str, float]:
        read = self._metrics.registry.get_sample_value
        return {name: read(f"consumer_wal_{name}_total") or 0.0 for name in _COUNTERS}

    def _known(self) -> dict[str, Any]:
        found = self._health or WalHealth(0, 0, 0, None, (), 0, full=False)
        trouble = self._trouble or ("" if not found.ready else self._late())
        return {
            "ready": found.ready and not trouble,
            "message": trouble or found.message,
            "pending_batches": found.batches,
            "pending_entries": found.entries,
            "failed_batches": found.failed,
            "quarantined_batches": len(found.quarantined),
            "bytes": found.bytes,
            "limit_bytes": self._wal.settings.max_bytes,
            "oldest_seconds": 0.0 if found.oldest is None else found.oldest.total_seconds(),
            "freshness_seconds": self._freshness.seconds,
            "unloaded_seconds": self._freshness.oldest,
        }

    def _late(self) -> str:
        if not self._freshness.late:
            return ""
        limit = format_duration(self._freshness.limit)
        return f"an event has no row after {self._freshness.oldest:.0f} s, and ingest.freshness is {limit}"
