"""Ticks: a bounded step that publishes what is due of the schedules of one store.

The event first, then the record with the next tick, under the revision that was read. Whoever dies in
between leaves a tick that is published again under the same id, which changes nothing; of two who are at it
at once, one has its record refused.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from holdfast import failpoints
from holdfast.contracts import STORE_ERRORS, Backend, raise_if_cancelled
from holdfast.model.backoff import backoff_seconds
from holdfast.model.errors import HoldfastError, IdConflict, InvalidInput
from holdfast.model.event import Event
from holdfast.model.upkeep import StateRecord
from holdfast.upkeep import schedules
from holdfast.upkeep.schedules import Plan, Schedule, plan

log = logging.getLogger(__name__)

LIMIT = 500
"""Records that one step reads."""
LOOK_EVERY = 1.0
"""Seconds between two looks of a process that nothing is due for."""
_CHUNK, _AT_ONCE = 100, 8  # schedules that are published together, and records written at a time
_BATCH_EVENTS, _BATCH_BYTES = 500, 4 << 20
_BUDGET = 0.5
_PAUSES = 1.0, schedules.LONGEST_RETRY.total_seconds()
_NAMED = 5

StoreOf = Callable[[str, str | None], Backend]
"""The store of a channel's events with this key. Raises `Unavailable` while it is faulty."""


@dataclass(slots=True)
class _Work:
    """A schedule that is due, what is to be done about it, and what came of it."""

    schedule: Schedule
    plan: Plan
    store: Backend | None = None
    events: list[Event] = field(default_factory=list)
    new: int = 0
    """Events that were published just now, and not by somebody else before."""
    error: str = ""


class Ticks:
    """Publishes what is due of the schedules of one store."""

    def __init__(
        self,
        backend: Backend,
        namespace: str,
        store_of: StoreOf,
        on_error: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._backend, self._namespace, self._store_of = backend, namespace, store_of
        self._on_error = on_error
        self._turn = asyncio.Lock()
        self._looked_at = -LOOK_EVERY
        self._unreadable: set[tuple[str, int]] = set()
        self.counts: Counter[str] = Counter()
        """What the steps of this process did: ticks `fired` or `skipped`, schedules `failed`."""

    async def run_if_due(self) -> bool:
        """Take a step unless the last look was just now; returns whether another one is worth taking at once.

        Raises no error of the store: whoever keeps time goes on, and looks again.
        """
        if self._turn.locked() or time.monotonic() - self._looked_at < LOOK_EVERY:
            return False
        try:
            return await self.run_once() > 0 and self._looked_at < 0
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            self._on_error(error)
            log.warning("schedules were not looked at: %r", error)
            return False

    async def run_once(self) -> int:
        """One bounded step; returns how many schedules it brought forward."""
        async with self._turn:
            began = self._looked_at = time.monotonic()
            due = await self._due()
            now = await self._backend.now() if due else None
            moved = 0
            while due and now is not None:
                chunk, due = due[:_CHUNK], due[_CHUNK:]
                done, rivalled, more = await self._step(chunk, now)
                moved += done
                if due or more or rivalled or len(chunk) == _CHUNK:
                    self._looked_at = -LOOK_EVERY  # look again at once
                if rivalled or time.monotonic() - began > _BUDGET:
                    break
            return moved

    async def _due(self) -> list[Schedule]:
        """Return schedules that are due, in any order: several processes begin with different ones."""
        limit = LIMIT + len(self._unreadable)
        found = []
        records = await self._backend.records.due(schedules.prefix(self._namespace), limit)
        for record in records:
            try:
                found.append(schedules.from_record(self._namespace, record))
            except InvalidInput as error:
                self._leave(record, error)
        random.shuffle(found)
        return found

    def _leave(self, record: StateRecord, error: InvalidInput) -> None:
        """Leave a record to those who know it, and look past it from now on."""
        if (record.key, record.revision) not in self._unreadable:
            log.warning("%s", error)
            self._unreadable = {each for each in self._unreadable if each[0] != record.key}
            self._unreadable.add((record.key, record.revision))

    async def _step(self, chunk: Sequence[Schedule], now: datetime) -> tuple[int, bool, bool]:
        """Publish and write down what is due of some schedules. Returns how many were brought forward,
        whether somebody else is at them too, and whether some have more."""
        works = [self._planned(schedule, now) for schedule in chunk]
        groups: dict[tuple[int, str, int], list[_Work]] = defaultdict(list)
        for work in works:
            if work.store is not None and work.events:
                schedule = work.schedule
                groups[id(work.store), schedule.channel, schedule.content.priority].append(work)
        for group in groups.values():
            for batch in _batches(group):
                await self._publish(batch)
        failpoints.hit("schedules.after_publish")
        gate = asyncio.Semaphore(_AT_ONCE)
        accepted = await asyncio.gather(*(self._put(work, now, gate) for work in works))
        kept = [work for work, yes in zip(works, accepted, strict=True) if yes]
        self._count(works, kept)
        await self._report(kept)
        return len(kept), len(kept) < len(works), any(work.plan.more and not work.error for work in kept)

    def _planned(self, schedule: Schedule, now: datetime) -> _Work:
        """What is to be done; a zone that this machine does not know is an error of that schedule alone."""
        try:
            work = _Work(schedule, plan(schedule, now))
            work.events = [schedule.event(tick) for tick in work.plan.ticks]
            work.store = self._store_of(schedule.channel, schedule.content.key)
        except (HoldfastError, OverflowError) as error:
            return _Work(schedule, Plan([], 0, schedule.next, False), error=str(error))
        return work

    async def _publish(self, works: Sequence[_Work]) -> None:
        """Publish the ticks of schedules of one channel at once; where that fails, of each by itself."""
        first = works[0]
        store, events = first.store, [event for work in works for event in work.events]
        if store is None:
            return
        log_ = store.log
        try:
            receipts = await log_.publish(
                first.schedule.channel, events, priority=first.schedule.content.priority
            )
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            await self._publish_apart(works, error)
            return
        place = iter(receipts)
        for work in works:
            work.new += sum(not next(place).duplicate for _ in work.events)

    async def _publish_apart(self, works: Sequence[_Work], error: BaseException) -> None:
        if len(works) > 1:
            for work in works:
                await self._publish([work])
            return
        [work] = works
        if isinstance(error, IdConflict) and len(work.events) == 1:
            return  # published before the schedule was changed: that tick has its event
        if isinstance(error, IdConflict):
            for event in work.events:
                await self._publish([part := _Work(work.schedule, work.plan, work.store, [event])])
                work.new, work.error = work.new + part.new, work.error or part.error
            return
        self._on_error(error)
        work.error = str(error) if isinstance(error, HoldfastError) else repr(error)
        log.warning(
            "schedule %s of %s: not published: %s", work.schedule.name, work.schedule.channel, work.error
        )

    async def _put(self, work: _Work, now: datetime, gate: asyncio.Semaphore) -> bool:
        """Write down what was done, unless the schedule has changed since it was read."""
        schedule, plan_ = work.schedule, work.plan
        if work.error:
            pause = timedelta(seconds=backoff_seconds(schedule.failures + 1, *_PAUSES))
            after = schedule.failed(work.error, now, pause)
        else:
            after = schedule.renewed(
                next=plan_.next,
                last=plan_.ticks[-1] if plan_.ticks else schedule.last,
                fired=schedule.fired + len(plan_.ticks),
                skipped=schedule.skipped + plan_.skipped,
            )
        key = schedules.key(self._namespace, schedule.channel, schedule.name)
        async with gate:
            put = self._backend.records.put
            return await put(key, schedules.to_fields(after), schedule.revision, after.due) is not None

    def _count(self, works: Sequence[_Work], kept: Sequence[_Work]) -> None:
        self.counts["fired"] += sum(work.new for work in works)
        self.counts["skipped"] += sum(work.plan.skipped for work in kept if not work.error)
        self.counts["failed"] += sum(bool(work.error) for work in kept)

    async def _report(self, works: Sequence[_Work]) -> None:
        """Log what was skipped, and raise an alert for each channel: one an hour, however many there are."""
        skipped = defaultdict[str, list[_Work]](list)
        for work in works:
            if work.plan.skipped and not work.error:
                skipped[work.schedule.channel].append(work)
        for channel, some in skipped.items():
            names = ", ".join(sorted(work.schedule.name for work in some)[:_NAMED])
            names += f" and {len(some) - _NAMED} more" if len(some) > _NAMED else ""
            count = sum(work.plan.skipped for work in some)
            message = f"{count} ticks of schedules were missed and not published: {names}"
            log.warning("%s: %s", channel, message)
            await self._alert(channel, message, count)

    async def _alert(self, channel: str, message: str, count: int) -> None:
        from holdfast.upkeep.announcements import Alert, raise_alert  # most programs do without pydantic

        words = f"{message}; nobody kept time: run a worker or 'holdfast up' at all times"
        alert = Alert(kind="missed_ticks", message=words, channel=channel, count=count)
        try:
            await raise_alert(self._backend, self._namespace, alert)
        except STORE_ERRORS as error:  # the ticks themselves are done with
            raise_if_cancelled(error)
            log.warning("missed ticks of %s were not announced: %r", channel, error)


def _batches(works: Sequence[_Work]) -> Iterator[list[_Work]]:
    """Split what is published at once by events and bytes."""
    batch: list[_Work] = []
    events = size = 0
    for work in works:
        events += len(work.events)
        size += sum(len(event.data) for event in work.events)
        if batch and (events > _BATCH_EVENTS or size > _BATCH_BYTES):
            yield batch
            batch, events = [], len(work.events)
            size = sum(len(event.data) for event in work.events)
        batch.append(work)
    yield batch
