"""The ledger: what the simulated store holds, and the one place where a job changes its state."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import NamedTuple

from holdfast.chaos.simulation.actors import Turn
from holdfast.chaos.simulation.jobs.judge import JobJudge
from holdfast.chaos.simulation.jobs.rows import Row
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.event import Event, Receipt
from holdfast.model.job import State
from holdfast.model.policy import Policy
from holdfast.model.position import format_position


class Logged(NamedTuple):
    """An event as it stands in the log."""

    event: Event
    position: str
    published_at: datetime


class Ledger:
    """The log, the jobs and their counts. Whatever changes is told to the judge."""

    def __init__(self, stage: Stage, judge: JobJudge, policies: dict[str, Policy]) -> None:
        self.stage, self.judge, self.policies = stage, judge, policies
        self.log: list[Logged] = []
        self.rows: dict[tuple[str, str], Row] = {}
        self.counts: Counter[tuple[str, State]] = Counter()
        self._keys: dict[tuple[str, str], Logged] = {}
        self._written = 0

    def _append(self, event: Event, at: datetime | None, priority: int) -> Receipt:
        known = self._known(event)
        if known is not None:
            self.stage.say(f"{event.id} is a duplicate")
            return Receipt(event.id, known.position, True)
        self._written += 1
        entry = Logged(event, format_position(1, self._written), self.stage.now)
        self._keys[event.source, event.id] = entry
        self.log.append(entry)
        self.judge.logged(event, entry.position)
        for consumer, policy in self.policies.items():
            self._create(consumer, policy, entry, at, priority)
        self.stage.say(f"{event.id} at {self._written}")
        return Receipt(event.id, entry.position)

    def _known(self, event: Event) -> Logged | None:
        return self._keys.get((event.source, event.id))

    def _create(
        self, consumer: str, policy: Policy, entry: Logged, at: datetime | None, priority: int
    ) -> None:
        now = self.stage.now
        due = max(at or now, now)
        state = State.SCHEDULED if due > now else State.READY
        expires = None if policy.expires_after is None else due + policy.expires_after
        row = Row(consumer, entry.event, entry.position, due, expires, priority, state)
        self.rows[consumer, entry.position] = row
        self._count(row, 1)
        self.judge.created(row, ordered=policy.ordered)

    def _grave(self, consumer: str) -> State:
        return State.DISCARDED if self.policies[consumer].on_dead == "discard" else State.DEAD

    def _move(self, row: Row, state: State, verb: str, token: int) -> None:
        before = row.state
        self._become(row, state)
        row.lease_until = row.worker = None
        self.stage.say(f"{verb} {row.name}: {before} to {state}")
        self.judge.moved(row, before, verb, token)

    def _become(self, row: Row, state: State) -> None:
        """A move and its count are one step."""
        self._count(row, -1)
        row.state = state
        self._count(row, 1)

    def _count(self, row: Row, change: int) -> None:
        self.counts[row.consumer, row.state] += change

    def _of(self, consumer: str) -> list[Row]:
        return [row for row in self.rows.values() if row.consumer == consumer]

    async def _asked(self, verb: str) -> None:
        await Turn(verb)
        self.stage.refuse(verb)

    async def _answered(self, verb: str) -> None:
        await Turn(f"answer to {verb}")
        self.stage.lose(verb)
