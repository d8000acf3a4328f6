"""The people of the world of jobs: what publishers, workers, the lifecycle and the operator do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import cast

from holdfast.chaos.simulation.actors import Turn
from holdfast.chaos.simulation.jobs.rows import CHANNEL
from holdfast.chaos.simulation.jobs.store import JobStore
from holdfast.chaos.simulation.stage import Stage
from holdfast.contracts import Backend
from holdfast.model.decide import after_failure, describe
from holdfast.model.errors import IdConflict, Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast.model.job import Burial, Job, Retry, State
from holdfast.upkeep.health import Health
from holdfast.upkeep.lifecycle import Lifecycle

IDS, KEYS = 14, ("a", "b", None)
_TRIES = 4
_PUBLISHED = ("dull", "dull", "later", "urgent", "rival")
_FATES = ("done", "done", "done", "done", "fail", "fail", "terminal", "snooze", "release", "extend", "vanish")
_ACTS = ("requeue", "requeue", "cancel", "purge", "policy")


class Publisher:
    """Publishes events under few ids, so that many are repeats; repeats what was not answered."""

    def __init__(self, stage: Stage, store: JobStore, ids: int = IDS) -> None:
        self._stage, self._store, self._ids = stage, store, ids

    async def errand(self) -> None:
        """One event, until it is acked, refused or given up."""
        chance, store = self._stage.chance, self._store
        number, kind = chance.below(self._ids), chance.pick(_PUBLISHED)
        data = b"%d rival" % number if kind == "rival" else b"%d" % number
        event = Event(data, f"e{number}", key=KEYS[number % len(KEYS)])
        at = self._stage.now + timedelta(seconds=chance.below(90)) if kind == "later" else None
        store.judge.attempted(event)
        for _ in range(_TRIES):
            try:
                [receipt] = await store.publish(CHANNEL, [event], at=at, priority=int(kind == "urgent"))
            except Unavailable:
                continue
            except (IdConflict, Overloaded) as error:
                self._stage.count(type(error).__name__)
                return
            store.judge.acked(event, receipt)
            return


class Worker:
    """Claims, handles and answers; is slow, fails, or forgets what it has."""

    def __init__(self, stage: Stage, store: JobStore, name: str, consumer: str) -> None:
        self._stage, self._store, self._name, self._consumer = stage, store, name, consumer

    async def errand(self) -> None:
        """A few jobs from one claim."""
        limit = 1 + self._stage.chance.below(3)
        try:
            jobs = await self._store.claim(CHANNEL, self._consumer, limit, self._name)
        except Unavailable:  # whatever was leased comes back when its lease ends
            return
        for job in jobs:
            self._store.judge.seen(job)
            await Turn("handle")
            await self._handle(job)

    async def _handle(self, job: Job) -> None:
        store, stage = self._store, self._stage
        fate = "done" if stage.calm else stage.chance.pick(_FATES)
        stage.count(fate)
        match fate:
            case "fail" | "terminal":
                await self._fail(job, terminal=fate == "terminal")
            case "snooze":
                await self._until_answered(lambda: store.retry([Retry(job, timedelta(seconds=20))]))
            case "release":
                await self._until_answered(lambda: store.retry([Retry(job, None)]))
            case "extend":
                lease = store.policies[self._consumer].lease
                await self._until_answered(lambda: store.extend([job], lease))
                await self._until_answered(lambda: store.complete([job]))
            case "vanish":
                return
            case _:
                await self._until_answered(lambda: store.complete([job]))

    async def _fail(self, job: Job, *, terminal: bool) -> None:
        """As the bus settles a failure: judged by the policy, then asked of the store."""
        policy, failure = self._store.policies[self._consumer], describe("no luck")
        verdict = after_failure(job, policy, failure, terminal=terminal, chance=self._stage.chance)
        match verdict:
            case Retry():
                await self._until_answered(lambda: self._store.retry([verdict]))
            case Burial():
                await self._until_answered(lambda: self._store.bury([verdict]))

    async def _until_answered(self, ask: Callable[[], Awaitable[list[bool]]]) -> None:
        for _ in range(_TRIES):
            try:
                await ask()
            except Unavailable:
                continue
            return


class Keeper:
    """Runs the lifecycle as it is."""

    def __init__(self, store: JobStore) -> None:
        self._lifecycle = Lifecycle(cast(Backend, store), Health(), limit=6)

    async def errand(self) -> None:
        """One step: read, decide, apply."""
        try:
            await self._lifecycle.run_once()
        except Unavailable:
            return


class Operator:
    """Requeues, cancels, purges, and changes budgets while everything runs."""

    def __init__(self, stage: Stage, store: JobStore) -> None:
        self._stage, self._store = stage, store

    async def errand(self) -> None:
        """One act."""
        chance, store = self._stage.chance, self._store
        act, rows = chance.pick(_ACTS), list(store.rows.values())
        await Turn("decide")
        if not rows:
            return
        row = chance.pick([row for row in rows if row.state is State.DEAD] or rows)
        try:
            match act:
                case "requeue":
                    await store.requeue(CHANNEL, row.consumer, row.position)
                case "cancel":
                    await store.cancel(CHANNEL, row.event.source, row.event.id, None)
                case "purge":
                    await store.purge(CHANNEL, row.consumer, [row.position])
                case _:
                    policy = store.policies[row.consumer]
                    store.set_policy(row.consumer, replace(policy, max_attempts=1 + chance.below(4)))
        except Unavailable:
            return
