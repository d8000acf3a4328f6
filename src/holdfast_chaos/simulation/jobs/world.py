"""The world of jobs, and its defects: the same store, with one guard left out."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import ClassVar

from holdfast.model.backoff import Exponential, Steps
from holdfast.model.decide import Action, Due, DueKind, Move
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast_chaos.simulation.actors import CoroutineActor
from holdfast_chaos.simulation.jobs.actors import (
    LifecycleActor,
    Operator,
    SimulatedPublisher,
    SimulatedWorker,
)
from holdfast_chaos.simulation.jobs.checks import JobChecks
from holdfast_chaos.simulation.jobs.store import JobRow, JobStore, LoggedEvent
from holdfast_chaos.simulation.scheduler import Chance, Scheduler
from holdfast_chaos.simulation.world import World


class Jobs(World):
    """Two consumers, one of them ordered, under policies that chance has drawn."""

    name: ClassVar[str] = "jobs"

    def __init__(self, chance: Chance, store: type[JobStore] = JobStore) -> None:
        self.scheduler = Scheduler(chance)
        policies = {"billing": draw_policy(chance), "stock": draw_policy(chance, ordered=True)}
        self._checks = JobChecks(self.scheduler, policies)
        self._store = store(self.scheduler, self._checks, policies)
        publisher = CoroutineActor(
            "publisher", SimulatedPublisher(self.scheduler, self._store).run_once, heals=False
        )
        operator = CoroutineActor("operator", Operator(self.scheduler, self._store).run_once, heals=False)
        workers = [
            CoroutineActor(
                f"worker-{number}",
                SimulatedWorker(self.scheduler, self._store, f"w{number}", consumer).run_once,
            )
            for number, consumer in enumerate(("billing", "billing", "stock", "stock"), 1)
        ]
        keepers = [
            CoroutineActor(f"lifecycle-{number}", LifecycleActor(self._store).run_once) for number in (1, 2)
        ]
        self.actors = [publisher, publisher, operator, *workers, *keepers]

    def audit(self) -> None:
        store = self._store
        self._checks.audit(list(store.rows.values()), store.counts, store.policies)

    def backlog(self) -> str:
        live = [f"{row.name} is {row.state}" for row in self._store.rows.values() if row.live]
        return ", ".join(live[:5])

    def final_check(self) -> None:
        """The checks has followed every move, and nothing is live."""


def draw_policy(chance: Chance, *, ordered: bool = False) -> Policy:
    """Small budgets and short leases, so that all of them are used up within a history."""
    wait = timedelta(seconds=5)
    return Policy(
        max_attempts=1 + chance.below(4),
        max_abandonments=1 + chance.below(3),
        lease=timedelta(seconds=chance.pick((10, 30, 60))),
        backoff=Steps((wait, 4 * wait)) if chance.below(2) else Exponential(base=wait),
        expires_after=chance.pick((None, timedelta(minutes=10), timedelta(minutes=2))),
        on_dead=chance.pick(("keep", "keep", "discard")),
        ordered=ordered,
    )


class UnfencedStore(JobStore):
    """Whoever answers for a leased job is believed."""

    def _is_newest(self, row: JobRow, token: int) -> bool:
        return True


class CostlyExpiry(JobStore):
    """A lease that expires costs an attempt."""

    def _take_back(self, row: JobRow) -> None:
        row.abandonments += 1


class EarlyVerdict(JobStore):
    """The lifecycle ends a last attempt while its lease runs."""

    def _is_overdue(self, row: JobRow) -> bool:
        return row.attempts >= self.policies[row.consumer].max_attempts or super()._is_overdue(row)


class OneLook(JobStore):
    """Phase two applies what phase one decided, without looking again."""

    def _still_holds(self, action: Action, row: JobRow) -> bool:
        return row.live


class ForgetfulStore(JobStore):
    """A repeat that comes a minute later is taken for a new event."""

    def _known(self, event: Event) -> LoggedEvent | None:
        found = super()._known(event)
        is_recent = found is not None and (self.scheduler.now - found.published_at).total_seconds() < 60
        return found if is_recent else None


class Overtaking(JobStore):
    """A job that waits after a failure does not hold back its key."""

    def _is_head(self, row: JobRow) -> bool:
        return not any(
            each.state is State.LEASED and each.event.key == row.event.key and each.position < row.position
            for each in self._of(row.consumer)
        )


class Miscounting(JobStore):
    """Dead letters that rise again stay counted."""

    def _count(self, row: JobRow, change: int) -> None:
        if change > 0 or row.state is not State.DEAD:
            super()._count(row, change)


class QueuedIsStuck(JobStore):
    """What has waited for long counts as stuck, leased or not."""

    def _due(self) -> Iterator[Due]:
        yield from super()._due()
        for row in self.rows.values():
            if row.state is State.READY and (self.scheduler.now - row.due_at).total_seconds() > 300:
                yield self._as_due(DueKind.LEASE, row, expired=False)

    def _still_holds(self, action: Action, row: JobRow) -> bool:
        waited = action.due.kind is DueKind.LEASE and row.state is State.READY and action.move is Move.ABANDON
        return waited or super()._still_holds(action, row)
