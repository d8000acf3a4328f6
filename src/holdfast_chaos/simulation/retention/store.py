"""The simulated store of retention: the store of jobs with cursors, a lock, and a log that can be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Self

from holdfast.model.errors import LockLost, Overloaded
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.log import Lag
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.model.upkeep import Cursor, Hold, Lock, Size, Trim
from holdfast_chaos.simulation.jobs.store import CHANNEL, JobStore, LoggedEvent
from holdfast_chaos.simulation.retention.checks import RetentionChecks
from holdfast_chaos.simulation.scheduler import Scheduler

_BYTES = 100
"""Every event has so many."""


class LogStore(JobStore):
    """One channel with worker consumers, stream consumers and a lock for the sweeper."""

    checks: RetentionChecks

    def __init__(self, scheduler: Scheduler, checks: RetentionChecks, policies: dict[str, Policy]) -> None:
        super().__init__(scheduler, checks, policies)
        self._cursors: dict[str, str | None] = {}
        self._lock: Lock | None = None
        self._tokens = 0
        self.full = False

    async def now(self) -> datetime:
        return self.scheduler.now

    @property
    def channels(self) -> Self:
        return self

    @property
    def cursors(self) -> Self:
        return self

    @property
    def locks(self) -> Self:
        return self

    @property
    def retention(self) -> Self:
        return self

    async def publish(
        self, channel: str, events: Sequence[Event], *, at: datetime | None = None, priority: int = 0
    ) -> list[Receipt]:
        if self.full:
            raise Overloaded(f"channel {channel!r} is full")
        return await super().publish(channel, events, at=at, priority=priority)

    # stream consumers

    async def attach(self, channel: str, consumer: str) -> Cursor:
        """From the beginning of the log."""
        await self._asked("attach")
        if consumer not in self._cursors:
            self._cursors[consumer] = None
            there = {entry.position for entry in self.entries}
            self.checks.attached(consumer, {row.position for row in self.rows.values()} - there)
        return Cursor(channel, consumer, self._cursors[consumer], self.scheduler.now)

    async def all(self, channel: str | None = None) -> list[Cursor]:
        await self._asked("read cursors")
        return [Cursor(CHANNEL, name, at, self.scheduler.now) for name, at in self._cursors.items()]

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        await self._asked("read the log")
        behind = [entry for entry in self.entries if after is None or entry.position > after][:limit]
        return [LogEntry(channel, entry.position, entry.event) for entry in behind]

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        await self._asked("move the cursor")
        moves = self._cursors[consumer] == expected and (expected is None or position > expected)
        if moves:
            self._cursors[consumer] = position
            self.scheduler.say(f"{consumer} is at {position}")
            self.checks.cursor_moved(consumer, position, self.entries)
        else:
            self.scheduler.count("cursor refused")
        await self._answered("move the cursor")
        return moves

    def late(self) -> list[str]:
        """The stream consumers that have not come to the end of the log."""
        last = self.entries[-1].position if self.entries else ""
        return [name for name, at in self._cursors.items() if (at or "") < last]

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        await self._asked("measure the lag")
        rest = [entry for entry in self.entries if after is None or entry.position > after]
        return Lag(len(rest), rest[0].published_at if rest else None)

    # the lock

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        await self._asked("lock")
        if self._lock is not None and self._lock.until > self.scheduler.now:
            return None
        self._tokens += 1
        taken = self._lock = Lock(name, owner, self._tokens, self.scheduler.now + ttl)
        self.checks.locked(taken)
        self.scheduler.say(f"{owner} under token {taken.token}")
        await self._answered("lock")
        return taken

    async def release(self, lock: Lock) -> bool:
        await self._asked("unlock")
        mine = self._lock is not None and self._is_holder(lock)
        if mine:
            self._lock = None
        return mine

    def _fence(self, lock: Lock) -> None:
        if not self._is_holder(lock):
            self.scheduler.count("refused by the lock's token")
            raise LockLost(lock.name, lock.token)

    def _is_holder(self, lock: Lock) -> bool:
        return lock.token == self._tokens

    # retention

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock,
        *,
        ignore: Sequence[str] = (),
        groups: Sequence[str] = (),
    ) -> Trim:
        await self._asked("trim")
        self._fence(lock)
        removed, hold, passed = 0, None, None
        for entry in list(self.entries):
            if entry.published_at >= before or removed == limit:
                break
            needs = self._who_needs(entry, ignore)
            if needs is not None:
                hold = Hold(needs, passed)
                break
            passed = entry.position
            if not self._is_dead(entry):
                self._remove(entry, lock)
                removed += 1
        await self._answered("trim")
        return Trim(removed, removed == limit, hold)

    def _who_needs(self, entry: LoggedEvent, ignore: Sequence[str]) -> str | None:
        """Who has not read it, or not finished with it."""
        for name, at in self._cursors.items():
            if name not in ignore and (at is None or entry.position > at):
                return name
        return self._who_works_on(entry)

    def _who_works_on(self, entry: LoggedEvent) -> str | None:
        rows = (self.rows[consumer, entry.position] for consumer in self.policies)
        return next((row.consumer for row in rows if row.live), None)

    def _is_dead(self, entry: LoggedEvent) -> bool:
        return any(self.rows[name, entry.position].state is State.DEAD for name in self.policies)

    def _remove(self, entry: LoggedEvent, lock: Lock) -> None:
        self.entries.remove(entry)
        self.scheduler.say(f"{entry.event.id} is gone")
        self.checks.trimmed(entry, [self.rows[name, entry.position] for name in self.policies], lock)

    async def size(self, channel: str) -> Size:
        await self._asked("measure the size")
        return Size(len(self.entries), len(self.entries) * _BYTES)

    async def set_full(self, channel: str, full: bool) -> None:
        await self._asked("open or close the channel")
        self.full = full
