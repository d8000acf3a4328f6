"""Defects of retention: the same world, with one guard left out."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.chaos.simulation.jobs.ledger import Logged
from holdfast.chaos.simulation.retention.people import Reader
from holdfast.chaos.simulation.retention.store import LogStore
from holdfast.model.event import LogEntry
from holdfast.model.upkeep import Cursor, Lock


class FastestReader(LogStore):
    """Trims what the fastest stream consumer has, not the slowest."""

    def _who_needs(self, entry: Logged, ignore: Sequence[str]) -> str | None:
        behind = [name for name, at in self._cursors.items() if at is None or entry.position > at]
        return behind[0] if len(behind) == len(self._cursors) > 0 else self._who_works_on(entry)


class NobodyWorks(LogStore):
    """Trims by age what a worker consumer has not finished."""

    def _who_works_on(self, entry: Logged) -> str | None:
        return None


class DeadIsDone(LogStore):
    """Trims the events of dead letters, which could then not be requeued."""

    def _is_dead(self, entry: Logged) -> bool:
        return False


class TokenlessLock(LogStore):
    """Whoever once had the lock may go on trimming."""

    def _is_holder(self, lock: Lock) -> bool:
        return True


class CursorFirst(Reader):
    """Moves the cursor before its sink is durable."""

    async def _take(self, cursor: Cursor, entries: list[LogEntry]) -> None:
        await self._advance(cursor, entries)
        await self._sink(entries)
