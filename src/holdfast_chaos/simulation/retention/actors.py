"""The actors of retention: readers with cursors, and sweepers."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from holdfast.contracts import Backend
from holdfast.model.errors import LockLost, Unavailable
from holdfast.model.event import LogEntry
from holdfast.model.upkeep import Cursor
from holdfast.upkeep.retention import RetentionSweep
from holdfast.upkeep.rules import Keep, Rules
from holdfast_chaos.simulation.actors import Turn
from holdfast_chaos.simulation.jobs.store import CHANNEL
from holdfast_chaos.simulation.retention.store import LogStore
from holdfast_chaos.simulation.scheduler import Scheduler

MAX_AGE, LOCK_TTL = timedelta(minutes=3), timedelta(seconds=40)
_PAGE = 4


class Reader:
    """One process of a stream consumer: read, store, then move the cursor. Several may share one cursor."""

    def __init__(self, scheduler: Scheduler, store: LogStore, consumer: str) -> None:
        self._scheduler, self._store, self._consumer = scheduler, store, consumer

    async def run_once(self) -> None:
        """One page."""
        try:
            cursor = await self._store.cursors.attach(CHANNEL, self._consumer)
            entries = await self._store.log.read(CHANNEL, cursor.position, _PAGE)
            if entries:
                await self._take(cursor, entries)
        except Unavailable:
            return

    async def _take(self, cursor: Cursor, entries: list[LogEntry]) -> None:
        await self._sink(entries)
        await self._advance(cursor, entries)

    async def _sink(self, entries: list[LogEntry]) -> None:
        """Durable, event by event: a crash leaves some of them."""
        for entry in entries:
            await Turn("store in the sink")
            self._store.checks.stored(self._consumer, [entry.position])

    async def _advance(self, cursor: Cursor, entries: list[LogEntry]) -> None:
        await self._store.cursors.move(CHANNEL, self._consumer, cursor.position, entries[-1].position)


class SweeperActor:
    """Takes the lock, and applies the retention as it is."""

    def __init__(self, scheduler: Scheduler, store: LogStore, name: str, max_bytes: int | None) -> None:
        self._scheduler, self._store, self._name = scheduler, store, name
        keep = Keep(max_age=MAX_AGE, max_bytes=max_bytes)
        self._rules = Rules(retention={CHANNEL: keep}, lock_ttl=LOCK_TTL)
        self._retention = RetentionSweep(cast(Backend, store), self._rules)

    async def run_once(self) -> None:
        """One sweep."""
        store, rules = self._store, self._rules
        try:
            lock = await store.locks.acquire(rules.lock_name, self._name, rules.lock_ttl)
            if lock is None:
                return
            kept = await self._retention.sweep_channel(CHANNEL, await store.now(), lock)
            self._scheduler.say(f"trimmed {sum(kept.trimmed.values())}, held by {len(kept.held)}")
            await store.locks.release(lock)
        except LockLost:
            self._scheduler.say("the lock is another's by now")
        except Unavailable:
            return
