"""The actors of the world of jobs: publishers, workers, the lifecycle and an operator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import cast

from holdfast.contracts import Backend
from holdfast.model.decide import after_failure, describe
from holdfast.model.errors import IdConflict, Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast.model.job import Burial, Cancellation, Job, Retry
from holdfast.model.states import State
from holdfast.upkeep.lifecycle import Health, LifecycleSteps
from holdfast_chaos.simulation.actors import Turn
from holdfast_chaos.simulation.jobs.store import CHANNEL, JobStore
from holdfast_chaos.simulation.scheduler import Scheduler

IDS, KEYS = 14, ("a", "b", None)
_TRIES = 4
_PUBLISHED = ("dull", "dull", "later", "urgent", "rival")
_FATES = ("done", "done", "done", "done", "fail", "fail", "terminal", "snooze", "release", "extend", "vanish")
_ACTS = ("requeue", "requeue", "cancel", "cancel running", "purge", "policy")


class SimulatedPublisher:
    """Publishes events under few ids, so that many are repeats; repeats what was not answered."""

    def __init__(self, scheduler: Scheduler, store: JobStore, ids: int = IDS) -> None:
        self._scheduler, self._store, self._ids = scheduler, store, ids

    async def run_once(self) -> None:
        """One event, until it is acked, refused or given up."""
        chance, store = self._scheduler.chance, self._store
        number, kind = chance.below(self._ids), chance.pick(_PUBLISHED)
        data = b"%d rival" % number if kind == "rival" else b"%d" % number
        event = Event(data, f"e{number}", key=KEYS[number % len(KEYS)])
        at = self._scheduler.now + timedelta(seconds=chance.below(90)) if kind == "later" else None
        store.checks.attempted(event)
        for _ in range(_TRIES):
            try:
                [receipt] = await store.log.publish(CHANNEL, [event], at=at, priority=int(kind == "urgent"))
            except Unavailable:
                continue
            except (IdConflict, Overloaded) as error:
                self._scheduler.count(type(error).__name__)
                return
            store.checks.acked(event, receipt)
            return


class SimulatedWorker:
    """Claims, handles and answers; is slow, fails, or forgets what it has."""

    def __init__(self, scheduler: Scheduler, store: JobStore, name: str, consumer: str) -> None:
        self._scheduler, self._store, self._name, self._consumer = scheduler, store, name, consumer

    async def run_once(self) -> None:
        """A few jobs from one claim."""
        limit = 1 + self._scheduler.chance.below(3)
        try:
            jobs = await self._store.leases.claim(CHANNEL, self._consumer, limit, self._name)
        except Unavailable:  # whatever was leased comes back when its lease ends
            return
        for job in jobs:
            self._store.checks.seen(job)
            await Turn("handle")
            await self._handle(job)

    async def _handle(self, job: Job) -> None:
        store, scheduler = self._store, self._scheduler
        fate = "done" if scheduler.calm else scheduler.chance.pick(_FATES)
        scheduler.count(fate)
        match fate:
            case "fail" | "terminal":
                await self._fail(job, terminal=fate == "terminal")
            case "snooze":
                await self._until_answered(lambda: store.leases.retry([Retry(job, timedelta(seconds=20))]))
            case "release":
                await self._until_answered(lambda: store.leases.retry([Retry(job, None)]))
            case "extend":
                lease = store.policies[self._consumer].lease
                await self._until_answered(lambda: store.leases.extend([job], lease))
                await self._until_answered(lambda: store.leases.complete([job]))
            case "vanish":
                return
            case _:
                await self._until_answered(lambda: store.leases.complete([job]))

    async def _fail(self, job: Job, *, terminal: bool) -> None:
        """Finish a failed job as the bus does: the policy decides, the store applies it."""
        policy, failure = self._store.policies[self._consumer], describe("no luck")
        decision = after_failure(job, policy, failure, terminal=terminal, chance=self._scheduler.chance)
        match decision:
            case Retry():
                await self._until_answered(lambda: self._store.leases.retry([decision]))
            case Burial():
                await self._until_answered(lambda: self._store.leases.bury([decision]))

    async def _until_answered(self, ask: Callable[[], Awaitable[list[bool]]]) -> None:
        for _ in range(_TRIES):
            try:
                await ask()
            except Unavailable:
                continue
            return


class LifecycleActor:
    """Runs the lifecycle as it is."""

    def __init__(self, store: JobStore) -> None:
        self._lifecycle = LifecycleSteps(cast(Backend, store), Health(), limit=6)

    async def run_once(self) -> None:
        """One step: read, decide, apply."""
        try:
            await self._lifecycle.run_once()
        except Unavailable:
            return


class Operator:
    """Requeues, cancels, purges, and changes budgets while everything runs."""

    def __init__(self, scheduler: Scheduler, store: JobStore) -> None:
        self._scheduler, self._store = scheduler, store

    async def run_once(self) -> None:
        """One act."""
        chance, store = self._scheduler.chance, self._store
        act, rows = chance.pick(_ACTS), list(store.rows.values())
        await Turn("decide")
        if not rows:
            return
        row = chance.pick([row for row in rows if row.state is State.DEAD] or rows)
        try:
            match act:
                case "requeue":
                    await store.leases.requeue(CHANNEL, row.consumer, row.position)
                case "cancel":
                    await store.leases.cancel(CHANNEL, row.event.source, row.event.id, None)
                case "cancel running":
                    how = Cancellation(running=True)
                    row = chance.pick([row for row in rows if row.state is State.LEASED] or rows)
                    await store.leases.cancel(CHANNEL, row.event.source, row.event.id, None, how)
                case "purge":
                    await store.deadletters.purge(CHANNEL, row.consumer, [row.position])
                case _:
                    policy = store.policies[row.consumer]
                    store.set_policy(row.consumer, replace(policy, max_attempts=1 + chance.below(4)))
        except Unavailable:
            return
