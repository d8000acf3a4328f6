"""Lag: how far the archive is behind its channels, as a count and as an age, and when that is too much."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime

from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError
from holdfast.model.log import Lag
from holdfast.model.names import matches
from holdfast.model.upkeep import Cursor
from holdfast.pipeline.archive.metrics import Metrics
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.offsets import Spot
from holdfast.upkeep.announcements import Alert, announce

log = logging.getLogger(__name__)

EVERY, REPEAT = 30.0, 3600.0
COUNTED = 1_000_000


def alert(policy: ArchivePolicy, channel: str, lag: Lag, now: datetime) -> Alert | None:
    """What to say of a lag, if it is over a threshold."""
    age = 0.0 if lag.oldest is None else (now - lag.oldest).total_seconds()
    if lag.events <= policy.lag_events and age <= policy.lag_age.total_seconds():
        return None
    return Alert(
        kind="lag",
        message=f"the archive is {lag.events} events and {age:.0f} s behind on {channel}; "
        "look at the archiver's log, and give it more cores if it only lacks time",
        channel=channel,
        consumer=policy.consumer,
        count=lag.events,
        age_seconds=age,
    )


class LagWatch:
    """Measures the lag now and then, and raises each alert at once, then every hour while it lasts."""

    def __init__(self, policies: Sequence[ArchivePolicy], metrics: Metrics) -> None:
        self._policies, self._metrics = policies, metrics
        self._looked = -EVERY
        self._alerted: dict[Spot, float] = {}

    def look(self, connection: Connection) -> None:
        """Measure, if it is time to."""
        if time.monotonic() - self._looked >= EVERY:
            self._looked = time.monotonic()
            try:
                connection.run(self._measure(connection.backends))
            except HoldfastError as error:
                log.warning("the lag could not be measured: %s", error)

    async def _measure(self, backends: Sequence[Backend]) -> None:
        for partition, backend in enumerate(backends):
            for cursor in await backend.cursors():
                for policy in self._policies:
                    if cursor.name == policy.consumer and matches(policy.stream, cursor.channel):
                        await self._judge(backend, Spot(partition, cursor.channel), cursor, policy)

    async def _judge(self, backend: Backend, spot: Spot, cursor: Cursor, policy: ArchivePolicy) -> None:
        lag = await backend.behind(cursor.channel, cursor.position, COUNTED)
        self._metrics.lag[spot] = lag
        found = alert(policy, cursor.channel, lag, await backend.now())
        if found is not None and time.monotonic() - self._alerted.get(spot, -REPEAT) >= REPEAT:
            await announce(backend, policy.namespace, found)
            self._alerted[spot] = time.monotonic()
