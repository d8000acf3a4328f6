"""The world of retention."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

from holdfast.chaos.simulation.actors import Task
from holdfast.chaos.simulation.chance import Chance
from holdfast.chaos.simulation.jobs.people import Keeper, Operator, Publisher, Worker
from holdfast.chaos.simulation.jobs.world import draw_policy
from holdfast.chaos.simulation.retention.judge import RetentionJudge
from holdfast.chaos.simulation.retention.people import MAX_AGE, Reader, SweeperAtWork
from holdfast.chaos.simulation.retention.store import LogStore
from holdfast.chaos.simulation.stage import Stage
from holdfast.chaos.simulation.world import World
from holdfast.model.job import State

_IDS = 40


class Parts(NamedTuple):
    """What a defect exchanges."""

    store: type[LogStore] = LogStore
    reader: type[Reader] = Reader


class Logs(World):
    """Two processes of the archiver, a consumer that comes late, a worker consumer, and two sweepers."""

    name: ClassVar[str] = "retention"

    def __init__(self, chance: Chance, parts: Parts = Parts()) -> None:  # noqa: B008 - it is immutable
        stage = self.stage = Stage(chance)
        policies = {"billing": draw_policy(chance)}
        self._judge = RetentionJudge(stage, policies)
        store = self._store = parts.store(stage, self._judge, policies)
        max_bytes = chance.pick((None, 800))
        readers = [
            Task(name, parts.reader(stage, store, name.partition("-")[0]).errand)
            for name in ("archiver-1", "archiver-2", "ingest-1")
        ]
        workers = [Task(f"worker-{n}", Worker(stage, store, f"w{n}", "billing").errand) for n in (1, 2)]
        sweepers = [
            Task(f"sweeper-{n}", SweeperAtWork(stage, store, f"s{n}", max_bytes).errand) for n in (1, 2)
        ]
        publisher = Task("publisher", Publisher(stage, store, _IDS).errand, heals=False)
        operator = Task("operator", Operator(stage, store).errand, heals=False)
        keeper = Task("lifecycle", Keeper(store).errand)
        self.actors = [publisher, publisher, operator, *readers[:2], *readers, *workers, keeper, *sweepers]

    def audit(self) -> None:
        """See the world."""
        store = self._store
        self._judge.audit(list(store.rows.values()), store.counts, store.policies)

    def backlog(self) -> str:
        """Live jobs, late readers, and what is old and not needed, and yet there."""
        store, now = self._store, self.stage.now
        live = [f"{row.name} is {row.state}" for row in store.rows.values() if row.live]
        old = [
            f"{entry.event.id} is still there"
            for entry in store.log
            if now - entry.published_at >= MAX_AGE
            and store.rows["billing", entry.position].state is not State.DEAD
        ]
        late = [f"{name} is behind" for name in store.late()]
        closed = ["the channel is closed"] if store.full and len(store.log) < 5 else []
        return ", ".join([*live, *late, *old, *closed][:5])

    def account(self) -> None:
        """Every event is in both sinks, or was gone before its reader came."""
        for consumer, sink in self._judge.sinks.items():
            missing = {row.position for row in self._store.rows.values()} - sink
            if missing:
                self.stage.violate("I7", f"{consumer} never got {sorted(missing)[0]}")
