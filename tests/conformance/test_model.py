"""Any sequence of verbs: after each one the real backend and the model agree, and the invariants hold."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from model import BACKOFF, EXPIRES, LEASE, MAX_ABANDONMENTS, MAX_ATTEMPTS, Model

from holdfast.contracts import Backend
from holdfast.model.decide import after_failure
from holdfast.model.event import Event
from holdfast.model.job import Job, Retry, State
from holdfast.model.policy import Policy
from holdfast.wiring import backend as connect_backend
from kit import BOOM, CONSUMER, bury, complete, record, states, step
from stores import Store

T = TypeVar("T")

POLICY = Policy.of(
    max_attempts=MAX_ATTEMPTS,
    max_abandonments=MAX_ABANDONMENTS,
    lease=f"{LEASE}m",
    backoff=[f"{wait}m" for wait in BACKOFF],
    expires_after=f"{EXPIRES}m",
)
SETTINGS = settings(
    max_examples=120,
    stateful_step_count=40,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
MOST = 6
events = st.integers(0, MOST - 1)
leases = st.integers(0, 10_000)


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


class Machine(RuleBasedStateMachine):
    """Each run plays on a channel of its own."""

    backend: Backend
    loop: asyncio.AbstractEventLoop
    channels = count()

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        self.model.steps += 1
        return self.loop.run_until_complete(verb)

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.channel = f"model-{next(self.channels)}"
        self.held: list[Job] = []
        self.run(self.backend.subscribe(self.channel, CONSUMER, POLICY))
        self.base: datetime = self.run(self.backend.now())

    def teardown(self) -> None:
        for event_id, job in self.model.jobs.items():  # leave nothing for the next run's lifecycle
            if job.state is State.LEASED:
                found = self.loop.run_until_complete(self.kept(event_id))
                self.loop.run_until_complete(self.backend.requeue(self.channel, CONSUMER, found.id))
            self.loop.run_until_complete(self.backend.cancel(self.channel, "default", event_id, None))

    def kept(self, event_id: str) -> Coroutine[Any, Any, Any]:
        return record(self.backend, event_id, channel=self.channel)

    # what producers and operators do

    @precondition(lambda self: len(self.model.jobs) < MOST)
    @rule(priority=st.integers(0, 1), delay=st.sampled_from([None, None, -5, 15, 90]))
    def publish(self, priority: int, delay: int | None) -> None:
        name = str(len(self.model.jobs))
        at = None if delay is None else self.model.minutes + delay
        when = None if at is None else self.base + minutes(at)
        self.run(self.backend.publish(self.channel, [Event(1, name)], at=when, priority=priority))
        self.model.publish(name, priority, at)

    @precondition(lambda self: self.model.jobs)
    @rule(which=events)
    def publish_again(self, which: int) -> None:
        name = str(which % len(self.model.jobs))
        [receipt] = self.run(self.backend.publish(self.channel, [Event(1, name)]))
        assert receipt.duplicate

    @precondition(lambda self: self.model.jobs)
    @rule(which=events)
    def cancel(self, which: int) -> None:
        job = self.model.jobs[str(which % len(self.model.jobs))]
        cancelled = self.run(self.backend.cancel(self.channel, "default", job.id, None))
        assert cancelled == self.model.cancel(job)

    @precondition(lambda self: self.model.jobs)
    @rule(which=events)
    def requeue(self, which: int) -> None:
        job = self.model.jobs[str(which % len(self.model.jobs))]
        found = self.run(self.kept(job.id))
        requeued = self.run(self.backend.requeue(self.channel, CONSUMER, found.id))
        assert requeued == self.model.requeue(job)

    # what workers do

    @rule(limit=st.integers(1, 3))
    def claim(self, limit: int) -> None:
        jobs = self.run(self.backend.claim(self.channel, CONSUMER, limit, "model"))
        taken = self.model.claim(limit)
        assert [(job.event.id, job.token, job.attempt, job.abandonments) for job in jobs] == [
            (job.id, job.token, job.attempts, job.abandonments) for job in taken
        ]
        self.held += jobs

    @precondition(lambda self: self.held)
    @rule(
        which=leases,
        verb=st.sampled_from(["complete", "complete", "fail", "fail", "bury", "release", "snooze", "extend"]),
    )
    def answer(self, which: int, verb: str) -> None:
        """Any lease ever handed out, stale or not (I5: accepted means that its token was the newest)."""
        lease = self.held[which % len(self.held)]
        accepted = self.run(self.ask(verb, lease))
        assert accepted == self.model.holds(lease.event.id, lease.token)
        if accepted:
            job = self.model.jobs[lease.event.id]
            match verb:
                case "complete" | "fail" | "bury" | "release":
                    getattr(self.model, verb)(job)
                case _:
                    getattr(self.model, verb)(job, 45)

    async def ask(self, verb: str, lease: Job) -> bool:
        match verb:
            case "complete":
                return await complete(self.backend, lease)
            case "bury":
                return await bury(self.backend, lease)
            case "fail":
                verdict = after_failure(lease, POLICY, BOOM, terminal=False, chance=random.Random(0))
                asked = self.backend.retry if isinstance(verdict, Retry) else self.backend.bury
                return (await asked([verdict]))[0]  # type: ignore[operator]
            case "extend":
                return (await self.backend.extend([lease], minutes(45)))[0]
        return (await self.backend.retry([Retry(lease, None if verb == "release" else minutes(45))]))[0]

    # what time does

    @rule(by=st.sampled_from([5, 10, 30, 60, 240]))
    def advance(self, by: int) -> None:
        self.run(self.backend.advance(minutes(by)))
        self.model.minutes += by

    @rule()
    def upkeep(self) -> None:
        self.run(step(self.backend))
        self.model.upkeep()

    @invariant()
    def the_backend_agrees(self) -> None:
        counted: Counter[State] = Counter()
        for name, job in self.model.jobs.items():
            kept = self.loop.run_until_complete(self.kept(name))  # I1: each is somewhere, and only there
            counted[kept.state] += 1
            assert (kept.state, kept.attempts, kept.abandonments, kept.token) == (
                job.state,
                job.attempts,
                job.abandonments,
                job.token,
            ), name
            assert job.completions == (job.state is State.DONE)  # I4
            assert 0 <= kept.attempts <= MAX_ATTEMPTS  # I4
        if self.model.jobs:  # I3: inserted = sum of the states, and counters equal counts
            assert self.loop.run_until_complete(states(self.backend, channel=self.channel)) == counted


def test_the_backend_and_the_model_agree(store: Store) -> None:
    class Play(Machine):
        backend = connect_backend(store.url, connections=1)

    with asyncio.Runner() as runner:
        Play.loop = runner.get_loop()
        runner.run(Play.backend.open())
        try:
            run_state_machine_as_test(Play, settings=SETTINGS)
        finally:
            runner.run(Play.backend.close())
