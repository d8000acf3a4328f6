"""The world of retention, and its defects: the same world, with one guard left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from holdfast.model.event import LogEntry
from holdfast.model.states import State
from holdfast.model.upkeep import Cursor, Lock
from holdfast_chaos.simulation.actors import CoroutineActor
from holdfast_chaos.simulation.jobs.actors import (
    LifecycleActor,
    Operator,
    SimulatedPublisher,
    SimulatedWorker,
)
from holdfast_chaos.simulation.jobs.store import LoggedEvent
from holdfast_chaos.simulation.jobs.world import draw_policy
from holdfast_chaos.simulation.retention.actors import MAX_AGE, Reader, SweeperActor
from holdfast_chaos.simulation.retention.checks import RetentionChecks
from holdfast_chaos.simulation.retention.store import LogStore
from holdfast_chaos.simulation.scheduler import Chance, Scheduler
from holdfast_chaos.simulation.world import World

_IDS = 40


class RetentionParts(NamedTuple):
    """What a defect exchanges."""

    store: type[LogStore] = LogStore
    reader: type[Reader] = Reader


class Logs(World):
    """Two processes of the archiver, a consumer that comes late, a worker consumer, and two sweepers."""

    name: ClassVar[str] = "retention"

    def __init__(self, chance: Chance, parts: RetentionParts = RetentionParts()) -> None:  # noqa: B008 - it is immutable
        scheduler = self.scheduler = Scheduler(chance)
        policies = {"billing": draw_policy(chance)}
        self._checks = RetentionChecks(scheduler, policies)
        store = self._store = parts.store(scheduler, self._checks, policies)
        max_bytes = chance.pick((None, 800))
        readers = [
            CoroutineActor(name, parts.reader(scheduler, store, name.partition("-")[0]).run_once)
            for name in ("archiver-1", "archiver-2", "ingest-1")
        ]
        workers = [
            CoroutineActor(f"worker-{n}", SimulatedWorker(scheduler, store, f"w{n}", "billing").run_once)
            for n in (1, 2)
        ]
        sweepers = [
            CoroutineActor(f"sweeper-{n}", SweeperActor(scheduler, store, f"s{n}", max_bytes).run_once)
            for n in (1, 2)
        ]
        publisher = CoroutineActor(
            "publisher", SimulatedPublisher(scheduler, store, _IDS).run_once, heals=False
        )
        operator = CoroutineActor("operator", Operator(scheduler, store).run_once, heals=False)
        keeper = CoroutineActor("lifecycle", LifecycleActor(store).run_once)
        self.actors = [publisher, publisher, operator, *readers[:2], *readers, *workers, keeper, *sweepers]

    def audit(self) -> None:
        store = self._store
        self._checks.audit(list(store.rows.values()), store.counts, store.policies)

    def backlog(self) -> str:
        """Live jobs, late readers, and what is old and not needed, and yet there."""
        store, now = self._store, self.scheduler.now
        live = [f"{row.name} is {row.state}" for row in store.rows.values() if row.live]
        old = [
            f"{entry.event.id} is still there"
            for entry in store.entries
            if now - entry.published_at >= MAX_AGE
            and store.rows["billing", entry.position].state is not State.DEAD
        ]
        late = [f"{name} is behind" for name in store.late()]
        closed = ["the channel is closed"] if store.full and len(store.entries) < 5 else []
        return ", ".join([*live, *late, *old, *closed][:5])

    def final_check(self) -> None:
        """Every event is in both sinks, or was gone before its reader came."""
        for consumer, sink in self._checks.sinks.items():
            missing = {row.position for row in self._store.rows.values()} - sink
            if missing:
                self.scheduler.violate("I7", f"{consumer} never got {sorted(missing)[0]}")


class FastestReader(LogStore):
    """Trims what the fastest stream consumer has, not the slowest."""

    def _who_needs(self, entry: LoggedEvent, ignore: Sequence[str]) -> str | None:
        behind = [name for name, at in self._cursors.items() if at is None or entry.position > at]
        return behind[0] if len(behind) == len(self._cursors) > 0 else self._who_works_on(entry)


class NobodyWorks(LogStore):
    """Trims by age what a worker consumer has not finished."""

    def _who_works_on(self, entry: LoggedEvent) -> str | None:
        return None


class DeadIsDone(LogStore):
    """Trims the events of dead letters, which could then not be requeued."""

    def _is_dead(self, entry: LoggedEvent) -> bool:
        return False


class TokenlessLock(LogStore):
    """Whoever once had the lock may go on trimming."""

    def _is_holder(self, lock: Lock) -> bool:
        return True


class LogCursorFirst(Reader):
    """Moves the cursor before its sink is durable."""

    async def _take(self, cursor: Cursor, entries: list[LogEntry]) -> None:
        await self._advance(cursor, entries)
        await self._sink(entries)
