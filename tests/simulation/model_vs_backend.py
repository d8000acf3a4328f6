"""The model beside a backend: the simulated store beside a real one, asked the same and compared."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeVar, cast

from holdfast.contracts import Backend
from holdfast.model.decide import after_failure, describe
from holdfast.model.errors import IdConflict
from holdfast.model.event import Event
from holdfast.model.job import Burial, Job, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.upkeep.lifecycle import Health, LifecycleSteps
from holdfast_chaos import Violation
from holdfast_chaos.simulation.jobs.checks import JobChecks
from holdfast_chaos.simulation.jobs.store import CHANNEL, JobStore
from holdfast_chaos.simulation.scheduler import Chance, Scheduler

T = TypeVar("T")
BOOM = describe("boom")
# Time passes in multiples of ten minutes, and no deadline is near one of them: what the real store's own
# clock adds meanwhile decides nothing.
PASSES, WAIT = timedelta(minutes=10), timedelta(minutes=15)
POLICIES = {
    "billing": Policy.of(max_attempts=3, lease=WAIT, backoff=WAIT, expires_after="6100s"),
    "stock": Policy.of(max_attempts=2, max_abandonments=2, lease=WAIT, backoff=WAIT, ordered=True),
}


def finish(asked: Coroutine[Any, Any, T]) -> T:
    """A verb of the simulated store, with nobody else in between."""
    while True:
        try:
            asked.send(None)
        except StopIteration as answer:
            return cast(T, answer.value)


class ModelVsBackend:
    """Every act asks both; what they answer has to be the same."""

    ids = 12
    verbs: tuple[str, ...] = ("complete", "complete", "fail", "snooze", "release", "bury", "extend")
    _store: JobStore

    def __init__(self, real: Backend, seed: int, store: type[JobStore] = JobStore) -> None:
        policies = self._begin(real, seed, POLICIES)
        self._store = store(self._scheduler, JobChecks(self._scheduler, policies), policies)

    def _begin(self, real: Backend, seed: int, policies: dict[str, Policy]) -> dict[str, Policy]:
        self._real, self._chance, self._policies = real, random.Random(seed), policies
        self._scheduler = Scheduler(Chance(seed))
        self._scheduler.calm = True
        self._held: list[tuple[Job, Job]] = []
        self._known: dict[str, str] = {}
        self._acts = [getattr(self, name) for name in dir(self) if name.startswith("do_")]
        return dict(policies)

    async def open(self) -> None:
        await self._real.channels.create(CHANNEL)
        for name, policy in self._policies.items():
            await self._real.channels.subscribe(CHANNEL, name, policy)

    async def act(self) -> None:
        """Something, at a moment of its own: what is due earlier comes first."""
        self._scheduler.now += timedelta(milliseconds=1)
        await self._chance.choice(self._acts)()

    async def do_publish(self) -> None:
        number = self._chance.randrange(self.ids)
        kind = self._chance.choice(("plain", "plain", "later", "rival"))
        event = Event(b"rival" if kind == "rival" else b"%d" % number, f"e{number}", key="ab"[number % 2])
        later = WAIT if kind == "later" else timedelta(0)
        at, now = self._scheduler.now + later, await self._real.now() + later
        priority = self._chance.randrange(2)
        try:
            [mine] = finish(self._store.log.publish(CHANNEL, [event], at=at, priority=priority))
        except IdConflict:
            mine = None
        try:
            [theirs] = await self._real.log.publish(CHANNEL, [event], at=now, priority=priority)
        except IdConflict:
            theirs = None
        assert (mine and mine.duplicate) == (theirs and theirs.duplicate), (event, mine, theirs)
        if mine is not None:
            self._known[event.id] = mine.position

    do_publish_more = do_publish

    async def do_claim(self) -> None:
        consumer, limit = self._chance.choice(list(self._policies)), 1 + self._chance.randrange(3)
        mine = finish(self._store.leases.claim(CHANNEL, consumer, limit, "w"))
        theirs = await self._real.leases.claim(CHANNEL, consumer, limit, "w")
        leases = [_lease(job) for job in mine], [_lease(job) for job in theirs]
        assert leases[0] == leases[1], leases
        self._held += zip(mine, theirs, strict=True)

    do_claim_more = do_claim

    async def do_settle(self) -> None:
        """One of the leases, perhaps one that was lost long ago."""
        if not self._held:
            return
        mine, theirs = self._chance.choice(self._held)
        verb = self._chance.choice(self.verbs)
        policy = self._policies[mine.consumer]
        asked = finish(_settle(cast(Backend, self._store), verb, mine, policy))
        assert asked == await _settle(self._real, verb, theirs, policy)

    do_settle_more = do_settle

    async def do_operate(self) -> None:
        if not self._known:
            return
        name, consumer = self._chance.choice(sorted(self._known)), self._chance.choice(list(self._policies))
        theirs, mine = await self._id(name, consumer), self._known[name]
        match self._chance.choice(("requeue", "purge", "cancel")):
            case "requeue":
                asked = finish(self._store.leases.requeue(CHANNEL, consumer, mine))
                assert asked == await self._real.leases.requeue(CHANNEL, consumer, theirs)
            case "purge":
                purged = finish(self._store.deadletters.purge(CHANNEL, consumer, [mine]))
                assert purged == await self._real.deadletters.purge(CHANNEL, consumer, [theirs])
            case _:
                gone = finish(self._store.leases.cancel(CHANNEL, "default", name, None))
                assert gone == await self._real.leases.cancel(CHANNEL, "default", name, None)

    async def do_keep(self) -> None:
        mine = finish(LifecycleSteps(cast(Backend, self._store), Health()).run_once())
        assert mine == await LifecycleSteps(self._real, Health()).run_once()

    async def do_wait(self) -> None:
        passes = PASSES * (1 + self._chance.randrange(3))
        self._scheduler.now += passes
        await self._real.advance(passes)

    @property
    def violation(self) -> Violation | None:
        """What the checks of the simulation has found."""
        return self._scheduler.violation

    async def compare(self) -> None:
        """Where every job is by now."""
        for name, position in self._known.items():
            for record in await self._real.leases.find_jobs(CHANNEL, "default", name):
                row = self._store.rows[record.consumer, position]
                reason = row.reason if row.state is State.DEAD else record.reason
                mine = (row.state, row.attempts, row.abandonments, reason)
                assert mine == (record.state, record.attempts, record.abandonments, record.reason), row

    async def _id(self, name: str, consumer: str) -> str:
        records = await self._real.leases.find_jobs(CHANNEL, "default", name)
        return next(record.id for record in records if record.consumer == consumer)


async def _settle(store: Backend, verb: str, job: Job, policy: Policy) -> list[bool]:
    match verb:
        case "complete":
            return await store.leases.complete([job])
        case "fail":
            decision = after_failure(job, policy, BOOM, terminal=False, chance=random.Random(0))
            if isinstance(decision, Burial):
                return await store.leases.bury([decision])
            return await store.leases.retry([decision])
        case "snooze":
            return await store.leases.retry([Retry(job, WAIT)])
        case "release":
            return await store.leases.retry([Retry(job, None)])
        case "bury":
            return await store.leases.bury([Burial(job, Reason.TERMINAL, BOOM)])
        case _:
            return await store.leases.extend([job], WAIT)


def _lease(job: Job) -> tuple[str, int, int]:
    return job.event.id, job.attempt, job.abandonments
