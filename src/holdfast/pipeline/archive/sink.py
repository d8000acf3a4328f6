"""The archive as a sink: one policy as a streaming query. Its tasks write objects, the driver commits."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast.pipeline.archive.commit import Committer
from holdfast.pipeline.archive.leftovers import Leftovers
from holdfast.pipeline.archive.manifest import Manifest, Written
from holdfast.pipeline.archive.metrics import Metrics
from holdfast.pipeline.archive.policy import ArchivePolicy, refuse_rivals
from holdfast.pipeline.archive.source import archive_source
from holdfast.pipeline.archive.tasks import WriteObjects
from holdfast.pipeline.driver import Context, look_at
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.reports import Amount, Reporter
from holdfast.pipeline.source import HoldfastSource
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.stores.address import cloud_environment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

ROWS_PER_TASK = 50_000
SOONEST, LATEST = timedelta(milliseconds=200), timedelta(seconds=5)
"""How often to look for events that fill an object, or have waited: a tenth of the timeout, within these."""


class ArchiveSink:
    """Archives the channels of one policy; `policies` are all of the archiver."""

    def __init__(
        self,
        policy: ArchivePolicy,
        policies: Sequence[ArchivePolicy],
        context: Context,
        metrics: Metrics,
        reporter: Reporter,
    ) -> None:
        self._policy, self._policies, self._context = policy, policies, context
        self._metrics, self._reporter = metrics, reporter
        self._store = open_store(policy.destination)
        self._committer = Committer(context.connection.backends, self._store, policy)
        identity = f"{policy.consumer}\n{policy.stream}\n{self._store.url}"
        self.name = f"archive-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self.every = max(SOONEST, min(LATEST, policy.batch_timeout / 10))
        self._leftovers: Leftovers | None = None

    def prepare(self) -> Mapping[Spot, str | None]:
        """See the contract."""
        run = self._context.connection.run
        look_at(self._store)
        run(self._committer.attach())
        self._metrics.committed(run(self._committer.recover()))
        cursors = self._cursors()
        self._leftovers = Leftovers(self._store, cursors)
        return cursors

    def source(self, label: str) -> type[HoldfastSource]:
        """See the contract."""
        policy = self._policy
        write = WriteObjects(policy.destination, cloud_environment(), policy.batch_size)
        return archive_source(label, write, policy.batch_timeout)

    def options(self) -> Mapping[str, Any]:
        """See the contract."""
        policy = self._policy
        return {
            "channel": policy.stream,
            "consumer": policy.consumer,
            "maxRowsPerBatch": policy.max_rows,
            "rowsPerPartition": policy.batch_size * max(1, ROWS_PER_TASK // policy.batch_size),
        }

    def commit(self, rows: DataFrame, number: int) -> None:
        """See the contract."""
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
        if self._leftovers is not None:
            for name in self._leftovers.remove(manifests):
                log.info("removed %s, which was never committed", name)

    def _cursors(self) -> dict[Spot, str | None]:
        cursors = self._context.connection.run(self._committer.cursors())
        refuse_rivals(self._policies, (spot.channel for spot in cursors))
        return cursors


def _written(manifests: Sequence[Manifest]) -> dict[str, Amount]:
    """By channel: a channel has a manifest for each store that holds some of it."""
    found: dict[str, Amount] = {}
    for manifest in manifests:
        rows, size = found.get(manifest.spot.channel, (0, 0))
        size += sum(each.bytes for each in manifest.objects)
        found[manifest.spot.channel] = Amount(rows + manifest.rows, size)
    return found
