"""The lifecycle of one partition, in two phases: read what is due, then ask the store to apply."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from holdfast import failpoints
from holdfast.contracts import STORE_ERRORS, Applied, Backend, Reading, raise_if_cancelled
from holdfast.model.decide import Move, when_due
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.upkeep.discards import tell_discarded
from holdfast.upkeep.health import Health

log = logging.getLogger(__name__)

LIMIT = 500
INTERVAL = 1.0


class Lifecycle:
    """Expired leases, exhausted budgets, expiry, due schedules and backfills of one partition."""

    def __init__(
        self,
        backend: Backend,
        health: Health,
        limit: int = LIMIT,
        moves: Counter[str] | None = None,
        on_error: Callable[[BaseException], None] = lambda _: None,
        namespace: str = "gbe",
    ) -> None:
        self._namespace = namespace
        self._backend, self._health, self._limit = backend, health, limit
        self._on_error = on_error
        self._moves = Counter() if moves is None else moves

    async def run_once(self) -> Applied:
        """One bounded step; answers what it changed. A failed read marks the partition faulty."""
        applied, _ = await self._step()
        return applied

    async def run(self, interval: float = INTERVAL) -> None:
        """Step until cancelled: at once on start, at once again while there is more, else every interval.

        An error of no known kind is raised; whoever runs this begins it again.
        """
        while True:
            more = False
            try:
                _, more = await self._step()
            except HoldfastError as error:
                log.warning("lifecycle step failed: %s", error)
            if not more:
                await asyncio.sleep(interval)

    async def _step(self) -> tuple[Applied, bool]:
        reading = await self.read()
        try:
            applied = await self.apply(reading)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            self._on_error(error)
            raise
        self._moves.update(asdict(applied))
        # What was refused is due again only if it changed: never spin on it.
        return applied, applied.total > 0 and (reading.full or bool(reading.backfills))

    async def read(self) -> Reading:
        """Phase one: nothing is written."""
        try:
            reading = await self._backend.due(self._limit)
        except STORE_ERRORS as error:  # a partition that cannot be read, for any reason, takes nothing new
            raise_if_cancelled(error)
            self._on_error(error)
            self._health.failed(str(error))
            if isinstance(error, HoldfastError):
                raise
            raise Unavailable(f"the read of what is due failed: {error!r}") from error
        self._health.succeeded(reading.load)
        failpoints.hit("lifecycle.after_read")
        return reading

    async def apply(self, reading: Reading) -> Applied:
        """Phase two: the store checks each decision again."""
        applied = Applied()
        if reading.due:
            actions = [when_due(due) for due in reading.due]
            applied = await self._backend.apply(actions)
            if applied.buried:
                gone = (each.due for each in actions if each.move is Move.BURY)
                dropped = [(*due.discards, str(due.ref[1])) for due in gone if due.discards]
                await tell_discarded(self._backend, self._namespace, dropped)
        for ref in reading.backfills:
            applied.backfilled += await self._backend.backfill(ref, self._limit)
            failpoints.hit("subscribe.mid_backfill")
        return applied
