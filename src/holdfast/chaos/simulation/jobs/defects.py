"""Defects of the store of jobs: the same store, with one guard left out."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.chaos.simulation.jobs.ledger import Logged
from holdfast.chaos.simulation.jobs.rows import Row
from holdfast.chaos.simulation.jobs.store import JobStore
from holdfast.model.decide import Action, Due, DueKind, Move
from holdfast.model.event import Event
from holdfast.model.job import State


class Unfenced(JobStore):
    """Whoever answers for a leased job is believed."""

    def _is_newest(self, row: Row, token: int) -> bool:
        return True


class CostlyExpiry(JobStore):
    """A lease that expires costs an attempt."""

    def _take_back(self, row: Row) -> None:
        row.abandonments += 1


class EarlyVerdict(JobStore):
    """The lifecycle ends a last attempt while its lease runs."""

    def _is_overdue(self, row: Row) -> bool:
        return row.attempts >= self.policies[row.consumer].max_attempts or super()._is_overdue(row)


class OneLook(JobStore):
    """Phase two applies what phase one decided, without looking again."""

    def _still_holds(self, action: Action, row: Row) -> bool:
        return row.live


class Forgetful(JobStore):
    """A repeat that comes a minute later is taken for a new event."""

    def _known(self, event: Event) -> Logged | None:
        found = super()._known(event)
        is_recent = found is not None and (self.stage.now - found.published_at).total_seconds() < 60
        return found if is_recent else None


class Overtaking(JobStore):
    """A job that waits after a failure does not hold back its key."""

    def _is_head(self, row: Row) -> bool:
        return not any(
            each.state is State.LEASED and each.event.key == row.event.key and each.position < row.position
            for each in self._of(row.consumer)
        )


class Miscounting(JobStore):
    """Dead letters that rise again stay counted."""

    def _count(self, row: Row, change: int) -> None:
        if change > 0 or row.state is not State.DEAD:
            super()._count(row, change)


class QueuedIsStuck(JobStore):
    """What has waited for long counts as stuck, leased or not."""

    def _due(self) -> Iterator[Due]:
        yield from super()._due()
        for row in self.rows.values():
            if row.state is State.READY and (self.stage.now - row.due_at).total_seconds() > 300:
                yield self._as_due(DueKind.LEASE, row, expired=False)

    def _still_holds(self, action: Action, row: Row) -> bool:
        waited = action.due.kind is DueKind.LEASE and row.state is State.READY and action.move is Move.ABANDON
        return waited or super()._still_holds(action, row)
