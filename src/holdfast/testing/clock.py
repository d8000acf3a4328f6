"""The clock of a store, which a test can move: leases run out and retries come due without waiting."""

from __future__ import annotations

from datetime import datetime

from holdfast.bus.client import Bus
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration


class Clock:
    """The time of every store of a bus. It only moves forward."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def now(self) -> datetime:
        """The first store's time."""
        return await self._bus.partitions.all[0].backend.now()

    async def advance(self, by: Duration) -> int:
        """Move the time forward and take what comes due then; answers how many jobs changed their state."""
        changed = 0
        for partition in self._bus.partitions.all:
            await partition.backend.advance(parse_duration(by, what="by"))
            while (step := (await partition.step()).total) > 0:
                changed += step
        return changed
