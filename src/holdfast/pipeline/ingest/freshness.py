"""Freshness: how long events take from their acknowledgement to their rows, and the oldest without a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.ingest.metrics import IngestMetrics
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.wal import Batch
from holdfast.upkeep.alerts import raise_alert
from holdfast.upkeep.announcements import Alert

log = logging.getLogger(__name__)
EVERY, COUNTED = 30.0, 1_000_000


class Freshness:
    """Of one ingest. Times are those of the stores: this machine's clock is compared with them."""

    def __init__(self, metrics: IngestMetrics, namespace: str, limit: timedelta) -> None:
        self._metrics, self._namespace, self.limit = metrics, namespace, limit
        self._looked, self._ahead = -EVERY, timedelta(0)
        self._waiting: dict[Spot, datetime] = {}
        """Since when the first event of each channel waits that is not in the WAL."""
        self._pending: dict[str, datetime] = {}
        """Since when the first event of each pending batch waits."""
        self.seconds: float | None = None
        """What the last batch took, from the acknowledgement of its first event."""

    def committed(self, batch: Batch) -> None:
        """A batch became pending."""
        if (since := _since(batch)) is not None:
            self._pending[batch.name] = since
        for part in batch.parts:
            self._waiting.pop(part.spot, None)

    def loaded(self, batch: Batch) -> None:
        """A batch is in the warehouse."""
        self._pending.pop(batch.name, None)
        if (since := _since(batch)) is not None:
            self.seconds = max(0.0, (self._now() - since).total_seconds())
            self._metrics.freshness.observe(self.seconds)

    def found(self, pending: Sequence[Batch]) -> None:
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
        if time.monotonic() - self._looked < EVERY:
            return
        self._looked = time.monotonic()
        try:
            self._waiting = connection.run(self._measure(connection.backends))
            self._metrics.unloaded.set(self.oldest)
            if self.late:
                connection.run(raise_alert(connection.backends[0], self._namespace, self._alert()))
        except HoldfastError as error:
            log.warning("the lag could not be measured: %s", error)

    async def _measure(self, backends: Sequence[Backend]) -> dict[Spot, datetime]:
        found: dict[Spot, datetime] = {}
        for place, backend in enumerate(backends):
            now = await backend.now()
            self._ahead = now - datetime.now(UTC) if place == 0 else self._ahead
            cursors = [cursor for cursor in await backend.cursors() if cursor.name == CONSUMER]
            after = {cursor.channel: cursor.position for cursor in cursors}
            for channel, lag in (await backend.waiting(after, COUNTED)).items():
                age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
                self._metrics.lag_events.labels(place, channel).set(lag.rows)
                self._metrics.lag_seconds.labels(place, channel).set(age)
                if lag.oldest is not None:
                    found[Spot(place, channel)] = lag.oldest
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


def _since(batch: Batch) -> datetime | None:
    """When its first event was published."""
    return min((datetime.fromisoformat(part.since) for part in batch.parts if part.since), default=None)
