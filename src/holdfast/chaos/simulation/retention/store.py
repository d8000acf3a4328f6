"""The simulated store of retention: the store of jobs with cursors, a lock, and a log that can be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.chaos.simulation.jobs.ledger import Logged
from holdfast.chaos.simulation.jobs.rows import CHANNEL
from holdfast.chaos.simulation.jobs.store import JobStore
from holdfast.chaos.simulation.retention.judge import RetentionJudge
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.errors import LockLost, Overloaded
from holdfast.model.event import Event, LogEntry, Receipt
from holdfast.model.job import State
from holdfast.model.log import Lag
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Cursor, Hold, Lock, Size, Trim

_BYTES = 100
"""Every event has so many."""


class LogStore(JobStore):
    """One channel with worker consumers, stream consumers and a lock for the sweeper."""

    judge: RetentionJudge

    def __init__(self, stage: Stage, judge: RetentionJudge, policies: dict[str, Policy]) -> None:
        super().__init__(stage, judge, policies)
        self._cursors: dict[str, str | None] = {}
        self._lock: Lock | None = None
        self._tokens = 0
        self.full = False

    async def now(self) -> datetime:
        """See the contract."""
        return self.stage.now

    async def channels(self) -> list[str]:
        """See the contract."""
        return [CHANNEL]

    async def publish(
        self, channel: str, events: Sequence[Event], *, at: datetime | None = None, priority: int = 0
    ) -> list[Receipt]:
        """See the contract."""
        if self.full:
            raise Overloaded(f"channel {channel!r} is full")
        return await super().publish(channel, events, at=at, priority=priority)

    # stream consumers

    async def attach(self, channel: str, consumer: str) -> Cursor:
        """See the contract; from the beginning of the log."""
        await self._asked("attach")
        if consumer not in self._cursors:
            self._cursors[consumer] = None
            there = {entry.position for entry in self.log}
            self.judge.attached(consumer, {row.position for row in self.rows.values()} - there)
        return Cursor(channel, consumer, self._cursors[consumer], self.stage.now)

    async def cursors(self, channel: str | None = None) -> list[Cursor]:
        """See the contract."""
        await self._asked("read cursors")
        return [Cursor(CHANNEL, name, at, self.stage.now) for name, at in self._cursors.items()]

    async def read(self, channel: str, after: str | None, limit: int) -> list[LogEntry]:
        """See the contract."""
        await self._asked("read the log")
        behind = [entry for entry in self.log if after is None or entry.position > after][:limit]
        return [LogEntry(channel, entry.position, entry.event) for entry in behind]

    async def move(self, channel: str, consumer: str, expected: str | None, position: str) -> bool:
        """See the contract."""
        await self._asked("move the cursor")
        moves = self._cursors[consumer] == expected and (expected is None or position > expected)
        if moves:
            self._cursors[consumer] = position
            self.stage.say(f"{consumer} is at {position}")
            self.judge.cursor_moved(consumer, position, self.log)
        else:
            self.stage.count("cursor refused")
        await self._answered("move the cursor")
        return moves

    def late(self) -> list[str]:
        """The stream consumers that have not come to the end of the log."""
        last = self.log[-1].position if self.log else ""
        return [name for name, at in self._cursors.items() if (at or "") < last]

    async def behind(self, channel: str, after: str | None, limit: int) -> Lag:
        """See the contract."""
        await self._asked("measure the lag")
        rest = [entry for entry in self.log if after is None or entry.position > after]
        return Lag(len(rest), rest[0].published_at if rest else None)

    # the lock

    async def lock(self, name: str, owner: str, ttl: timedelta) -> Lock | None:
        """See the contract."""
        await self._asked("lock")
        if self._lock is not None and self._lock.until > self.stage.now:
            return None
        self._tokens += 1
        taken = self._lock = Lock(name, owner, self._tokens, self.stage.now + ttl)
        self.judge.locked(taken)
        self.stage.say(f"{owner} under token {taken.token}")
        await self._answered("lock")
        return taken

    async def unlock(self, lock: Lock) -> bool:
        """See the contract."""
        await self._asked("unlock")
        mine = self._lock is not None and self._is_holder(lock)
        if mine:
            self._lock = None
        return mine

    def _fence(self, lock: Lock) -> None:
        if not self._is_holder(lock):
            self.stage.count("refused by the lock's token")
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
        """See the contract."""
        await self._asked("trim")
        self._fence(lock)
        removed, hold, passed = 0, None, None
        for entry in list(self.log):
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

    def _who_needs(self, entry: Logged, ignore: Sequence[str]) -> str | None:
        """Who has not read it, or not finished with it."""
        for name, at in self._cursors.items():
            if name not in ignore and (at is None or entry.position > at):
                return name
        return self._who_works_on(entry)

    def _who_works_on(self, entry: Logged) -> str | None:
        rows = (self.rows[consumer, entry.position] for consumer in self.policies)
        return next((row.consumer for row in rows if row.live), None)

    def _is_dead(self, entry: Logged) -> bool:
        return any(self.rows[name, entry.position].state is State.DEAD for name in self.policies)

    def _remove(self, entry: Logged, lock: Lock) -> None:
        self.log.remove(entry)
        self.stage.say(f"{entry.event.id} is gone")
        self.judge.trimmed(entry, [self.rows[name, entry.position] for name in self.policies], lock)

    async def size(self, channel: str) -> Size:
        """See the contract."""
        await self._asked("measure the size")
        return Size(len(self.log), len(self.log) * _BYTES)

    async def set_full(self, channel: str, full: bool) -> None:
        """See the contract."""
        await self._asked("open or close the channel")
        self.full = full
