"""The archiver: a stream driver with a query for each policy. Tasks write objects, the driver commits."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.log import Lag
from holdfast.model.names import selects
from holdfast.pipeline.archive.commit import Committer, Orphans
from holdfast.pipeline.archive.compaction import compactions
from holdfast.pipeline.archive.manifests import Manifest
from holdfast.pipeline.archive.objects import Written
from holdfast.pipeline.archive.policy import ArchivePolicy, refuse_conflicts
from holdfast.pipeline.archive.source import WriteObjects, archive_source
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver import Context, Driver, Sink, log_probe
from holdfast.pipeline.offsets import ChannelPartition
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.source import HoldfastSource
from holdfast.pipeline.stores import cloud_environment, open_store
from holdfast.pipeline.upkeep import Upkeep
from holdfast.upkeep.announcements import lag_alert, raise_alert

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

ROWS_PER_TASK = 50_000
SOONEST, LATEST = timedelta(milliseconds=200), timedelta(seconds=5)
"""The bounds of the interval between two looks for events to archive: a tenth of the batch timeout."""
LAG_INTERVAL = 30.0
_LAG_LIMIT = 1_000_000
"""The lag is counted up to this."""


@dataclass(slots=True)
class ChannelTotals:
    """What was archived of one channel."""

    rows: int = 0
    objects: int = 0
    bytes: int = 0
    commits: int = 0


@dataclass(slots=True)
class ArchiveMetrics:
    """Counts since the archiver started, and how far behind it is."""

    channels: dict[str, ChannelTotals] = field(default_factory=dict)
    failures: int = 0
    last_commit: datetime | None = None
    lag: dict[ChannelPartition, Lag] = field(default_factory=dict)

    def committed(self, manifests: Sequence[Manifest]) -> None:
        """Add what was committed."""
        for manifest in manifests:
            totals = self.channels.setdefault(manifest.spot.channel, ChannelTotals())
            totals.commits += 1
            totals.rows += manifest.rows
            totals.objects += len(manifest.objects)
            totals.bytes += sum(each.bytes for each in manifest.objects)
            self.last_commit = datetime.now(UTC)


class LagWatch:
    """Measures the lag now and then, and raises an alert where it is too much."""

    def __init__(self, policies: Sequence[ArchivePolicy], metrics: ArchiveMetrics) -> None:
        self._policies, self._metrics = policies, metrics
        self._looked = -LAG_INTERVAL

    def look(self, connection: Connection) -> None:
        """Measure, if it is time to."""
        if time.monotonic() - self._looked >= LAG_INTERVAL:
            self._looked = time.monotonic()
            try:
                connection.run(self._measure(connection.backends))
            except HoldfastError as error:
                log.warning("the lag could not be measured: %s", error)

    async def _measure(self, backends: Sequence[Backend]) -> None:
        consumer = self._policies[0].consumer  # of all of them
        for partition, backend in enumerate(backends):
            cursors = {
                each.channel: each.position for each in await backend.cursors.all() if each.name == consumer
            }
            for policy in self._policies:
                after = {channel: at for channel, at in cursors.items() if selects(policy.stream, channel)}
                await self._check(backend, partition, after, policy)

    async def _check(
        self, backend: Backend, partition: int, after: Mapping[str, str | None], policy: ArchivePolicy
    ) -> None:
        now = await backend.now()
        for channel, waiting in (await backend.log.waiting(after, _LAG_LIMIT)).items():
            lag = self._metrics.lag[ChannelPartition(partition, channel)] = Lag(waiting.rows, waiting.oldest)
            found = lag_alert(channel, policy.consumer, lag, now, policy.lag_events, policy.lag_age)
            if found is not None:
                await raise_alert(backend, policy.namespace, found)


class ArchiveSink:
    """Archives the channels of one policy; `policies` are all of the archiver."""

    def __init__(
        self,
        policy: ArchivePolicy,
        policies: Sequence[ArchivePolicy],
        context: Context,
        metrics: ArchiveMetrics,
        reporter: Reporter,
    ) -> None:
        self._policy, self._policies, self._context = policy, policies, context
        self._metrics, self._reporter = metrics, reporter
        self._store = open_store(policy.destination)
        self._committer = Committer(context.connection.backends, self._store, policy)
        identity = f"{policy.consumer}\n{policy.stream}\n{self._store.url}"
        self.name = f"archive-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self.every = max(SOONEST, min(LATEST, policy.batch_timeout / 10))
        self._orphans: Orphans | None = None

    def prepare(self) -> Mapping[ChannelPartition, str | None]:
        run = self._context.connection.run
        log_probe(self._store)
        run(self._committer.attach())
        self._metrics.committed(run(self._committer.recover()))
        cursors = self._cursors()
        self._orphans = Orphans(self._store, cursors)
        return cursors

    def source(self, label: str) -> type[HoldfastSource]:
        policy = self._policy
        write = WriteObjects(policy.destination, cloud_environment(), policy.batch_size)
        return archive_source(label, write, policy.batch_timeout)

    def options(self) -> Mapping[str, Any]:
        policy = self._policy
        return {
            "channel": policy.stream,
            "consumer": policy.consumer,
            "maxRowsPerBatch": policy.max_rows,
            "rowsPerPartition": policy.batch_size * max(1, ROWS_PER_TASK // policy.batch_size),
        }

    def commit(self, rows: DataFrame, number: int) -> None:
        began, context = time.monotonic(), self._context
        context.check_lock()
        self._cursors()  # raises where two policies have come to select the same new channel
        described = rows.collect()
        written = [Written(*row[:-1]) for row in described]
        cursors = {each.spot: row["after"] for each, row in zip(written, described, strict=True)}
        context.check_lock()
        manifests = context.connection.run(self._committer.commit(cursors, written))
        self._metrics.committed(manifests)
        self._reporter.batch(_written(manifests), time.monotonic() - began)
        if self._orphans is not None:
            for name in self._orphans.remove(manifests):
                log.info("removed %s, which was never committed", name)

    def _cursors(self) -> dict[ChannelPartition, str | None]:
        cursors = self._context.connection.run(self._committer.cursors())
        refuse_conflicts(self._policies, (spot.channel for spot in cursors))
        return cursors


def _written(manifests: Sequence[Manifest]) -> dict[str, Amount]:
    """By channel: a channel has a manifest for each store that holds some of it."""
    found: dict[str, Amount] = {}
    for manifest in manifests:
        rows, size = found.get(manifest.spot.channel, (0, 0))
        size += sum(each.bytes for each in manifest.objects)
        found[manifest.spot.channel] = Amount(rows + manifest.rows, size)
    return found


class Archiver:
    """Archives the channels of all policies on the given stores."""

    kind, flushes = "archiver", True

    def __init__(
        self,
        spark: SparkSession,
        urls: Sequence[str],
        policies: Sequence[ArchivePolicy],
        checkpoints: Path,
    ) -> None:
        if len({policy.lock_name for policy in policies}) != 1:
            raise InvalidInput("an archiver needs policies of one consumer and namespace; start one for each")
        self._policies = policies
        self.lock_name = policies[0].lock_name
        self.metrics = ArchiveMetrics()
        self._lag = LagWatch(policies, self.metrics)
        self.reporter = Reporter(policies[0].namespace, policies[0].report_name)
        self._upkeep: Upkeep | None = None
        self._driver = Driver(spark, urls, checkpoints, self)

    def run_once(self) -> ArchiveMetrics:
        """Archive all that is there now. Raises `Busy` where another archiver is at work.

        The lock of one that died is waited for.
        """
        self._driver.run_once()
        return self.metrics

    def run(self, stop: threading.Event) -> ArchiveMetrics:
        """Archive until told to stop, then flush what has not filled an object yet.

        While another archiver is at work this one waits. A failure moves nothing and is tried again.
        """
        self._driver.run(stop)
        return self.metrics

    # the job of its driver

    @contextlib.contextmanager
    def open(self, context: Context) -> Iterator[Sequence[Sink]]:
        settings = self._policies[0].compaction
        places = [policy.destination for policy in self._policies]
        archives = compactions(places, settings, context.check_lock)
        self._upkeep = Upkeep(lambda: archives, settings, context.check_lock)
        yield [
            ArchiveSink(policy, self._policies, context, self.metrics, self.reporter)
            for policy in self._policies
        ]

    @contextlib.contextmanager
    def beside(self, *, once: bool) -> Iterator[None]:
        """Compaction runs beside the queries."""
        if self._upkeep is None:
            raise RuntimeError("compaction runs only while the lock is held")
        with self._upkeep.beside():
            yield

    def look(self, connection: Connection) -> None:
        self._lag.look(connection)

    def progress(self) -> object:
        return self.metrics.last_commit

    def failed(self) -> None:
        self.metrics.failures += 1
