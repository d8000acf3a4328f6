"""Lag: how far the archive is behind its channels, as a count and as an age."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Lag
from holdfast.model.names import selects
from holdfast.pipeline.archive.metrics import Metrics
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import Spot
from holdfast.upkeep.alerts import lag_alert, raise_alert

log = logging.getLogger(__name__)

EVERY = 30.0
COUNTED = 1_000_000


class LagWatch:
    """Measures the lag now and then, and raises an alert where it is too much."""

    def __init__(self, policies: Sequence[ArchivePolicy], metrics: Metrics) -> None:
        self._policies, self._metrics = policies, metrics
        self._looked = -EVERY

    def look(self, connection: Connection) -> None:
        """Measure, if it is time to."""
        if time.monotonic() - self._looked >= EVERY:
            self._looked = time.monotonic()
            try:
                connection.run(self._measure(connection.backends))
            except HoldfastError as error:
                log.warning("the lag could not be measured: %s", error)

    async def _measure(self, backends: Sequence[Backend]) -> None:
        consumer = self._policies[0].consumer  # of all of them
        for partition, backend in enumerate(backends):
            cursors = {
                each.channel: each.position for each in await backend.cursors() if each.name == consumer
            }
            for policy in self._policies:
                after = {channel: at for channel, at in cursors.items() if selects(policy.stream, channel)}
                await self._judge(backend, partition, after, policy)

    async def _judge(
        self, backend: Backend, partition: int, after: Mapping[str, str | None], policy: ArchivePolicy
    ) -> None:
        now = await backend.now()
        for channel, waiting in (await backend.waiting(after, COUNTED)).items():
            lag = self._metrics.lag[Spot(partition, channel)] = Lag(waiting.rows, waiting.oldest)
            found = lag_alert(channel, policy.consumer, lag, now, policy.lag_events, policy.lag_age)
            if found is not None:
                await raise_alert(backend, policy.namespace, found)
