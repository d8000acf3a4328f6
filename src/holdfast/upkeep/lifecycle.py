"""The lifecycle of one partition, in two phases: read what is due, then ask the store to apply.

With it the partition's health, which its reads decide, and the announcement of what was discarded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from holdfast import failpoints
from holdfast.contracts import STORE_ERRORS, Applied, Backend, Reading, raise_if_cancelled
from holdfast.model.backoff import backoff_seconds
from holdfast.model.decide import Move, when_due
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.job import JobRecord
from holdfast.model.states import State
from holdfast.upkeep.ticks import Ticks

log = logging.getLogger(__name__)

LIMIT = 500
INTERVAL = 1.0
_RETRY_PAUSES = 0.2, 1.5  # the longer one bounds how long a store that is back is not used


@dataclass(slots=True)
class Health:
    """A failed read makes a partition faulty; a successful one heals it. Retries back off with jitter."""

    faulty: bool = False
    reason: str = ""
    load: int = 0
    """Live jobs as last read, plus what we published there since."""
    _failures: int = 0
    _retry_at: float = 0.0

    def failed(self, reason: str) -> None:
        """The store did not answer. What fails before the next try is due does not put it off."""
        due = self.worth_trying
        self.faulty, self.reason = True, reason
        if due:
            self._failures += 1
            self._retry_at = time.monotonic() + backoff_seconds(self._failures, *_RETRY_PAUSES)

    def succeeded(self, load: int) -> None:
        """A read went through: the partition takes new items again."""
        self.faulty, self.reason, self._failures, self.load = False, "", 0, load

    @property
    def worth_trying(self) -> bool:
        """Healthy, or faulty for long enough to ask again."""
        return not self.faulty or time.monotonic() >= self._retry_at


class LifecycleSteps:
    """Expired leases, exhausted budgets, expiry, scheduled jobs and backfills of one partition; with `ticks`
    also its schedules."""

    def __init__(
        self,
        backend: Backend,
        health: Health,
        limit: int = LIMIT,
        moves: Counter[str] | None = None,
        on_error: Callable[[BaseException], None] = lambda _: None,
        namespace: str = "gbe",
        ticks: Ticks | None = None,
    ) -> None:
        self._namespace, self._ticks = namespace, ticks
        self._backend, self._health, self._limit = backend, health, limit
        self._on_error = on_error
        self._moves = Counter() if moves is None else moves

    async def run_once(self) -> Applied:
        """One bounded step; returns what it changed. A failed read marks the partition faulty."""
        try:
            applied, _ = await self._step()
        finally:
            await self._tick()
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
            if not await self._tick() and not more:
                await asyncio.sleep(interval)

    async def _tick(self) -> bool:
        """Publish what is due of schedules, where they are kept here; returns whether there is more."""
        return self._ticks is not None and not self._health.faulty and await self._ticks.run_if_due()

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
            reading = await self._backend.lifecycle.due(self._limit)
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
            applied = await self._backend.lifecycle.apply(actions)
            if applied.buried:
                gone = (each.due for each in actions if each.move is Move.BURY)
                dropped = [(*due.discards, str(due.ref[1])) for due in gone if due.discards]
                await announce_discarded(self._backend, self._namespace, dropped)
        for ref in reading.backfills:
            applied.backfilled += await self._backend.lifecycle.backfill(ref, self._limit)
            failpoints.hit("subscribe.mid_backfill")
        return applied


async def announce_discarded(backend: Backend, namespace: str, jobs: Iterable[tuple[str, str, str]]) -> None:
    """Log and announce those jobs (channel, consumer, id) that were discarded. Raises no error for it.

    The event's id is the job's with its token, so that a repeat changes nothing.
    """
    for channel, consumer, job_id in jobs:
        try:
            record = await backend.leases.job(channel, consumer, job_id)
            if record is not None and record.state is State.DISCARDED:
                await _announce_discarded(backend, namespace, record)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("%s/%s: job %s was discarded and not announced: %r", channel, consumer, job_id, error)


async def _announce_discarded(backend: Backend, namespace: str, record: JobRecord) -> None:
    from holdfast.upkeep.announcements import Discarded, announce  # most programs do without pydantic

    error = record.errors[-1].get("error", "") if record.errors else ""
    log.warning(
        "%s/%s: event %s of %s (job %s) is discarded: %s after %s attempts, %s abandonments, worker %s: %s",
        *(record.channel, record.consumer, record.event_id, record.source, record.id, record.reason),
        *(record.attempts, record.abandonments, record.worker, error),
    )
    if record.channel.startswith(f"{namespace}.events.system."):
        return  # an event about it would be the next to be discarded
    discarded = Discarded(
        channel=record.channel,
        consumer=record.consumer,
        event_id=record.event_id,
        source=record.source,
        job=record.id,
        reason=record.reason or "",
        attempts=record.attempts,
        abandonments=record.abandonments,
        worker=record.worker,
        error=error,
    )
    name = f"discarded:{record.channel}/{record.consumer}/{record.id}/{record.token}"
    await announce(backend, namespace, discarded, name)
