"""The world of jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from holdfast.chaos.simulation.actors import Task
from holdfast.chaos.simulation.chance import Chance
from holdfast.chaos.simulation.jobs.judge import JobJudge
from holdfast.chaos.simulation.jobs.people import Keeper, Operator, Publisher, Worker
from holdfast.chaos.simulation.jobs.store import JobStore
from holdfast.chaos.simulation.stage import Stage
from holdfast.chaos.simulation.world import World
from holdfast.model.policy import Exponential, Policy, Steps


class Jobs(World):
    """Two consumers, one of them ordered, under policies that chance has drawn."""

    name: ClassVar[str] = "jobs"

    def __init__(self, chance: Chance, store: type[JobStore] = JobStore) -> None:
        self.stage = Stage(chance)
        policies = {"billing": draw_policy(chance), "stock": draw_policy(chance, ordered=True)}
        self._judge = JobJudge(self.stage, policies)
        self._store = store(self.stage, self._judge, policies)
        publisher = Task("publisher", Publisher(self.stage, self._store).errand, heals=False)
        operator = Task("operator", Operator(self.stage, self._store).errand, heals=False)
        workers = [
            Task(f"worker-{number}", Worker(self.stage, self._store, f"w{number}", consumer).errand)
            for number, consumer in enumerate(("billing", "billing", "stock", "stock"), 1)
        ]
        keepers = [Task(f"lifecycle-{number}", Keeper(self._store).errand) for number in (1, 2)]
        self.actors = [publisher, publisher, operator, *workers, *keepers]

    def audit(self) -> None:
        """See the world."""
        store = self._store
        self._judge.audit(list(store.rows.values()), store.counts, store.policies)

    def backlog(self) -> str:
        """See the world."""
        live = [f"{row.name} is {row.state}" for row in self._store.rows.values() if row.live]
        return ", ".join(live[:5])

    def account(self) -> None:
        """The judge has followed every move, and nothing is live."""


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
