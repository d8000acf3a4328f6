"""Any sequence of verbs: after each one the real backend and the model agree, and the invariants hold."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from datetime import datetime, timedelta
from itertools import count
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from model import BACKOFF, EXPIRES, LEASE, MAX_ABANDONMENTS, MAX_ATTEMPTS, Model, ModelJob

from holdfast.contracts import Backend
from holdfast.model.decide import after_failure
from holdfast.model.event import Event
from holdfast.model.job import Job, JobRecord, Retry
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.wiring import backend as connect_backend
from kit import BOOM, CONSUMER, bury, complete, record, states, step
from stores import Store

T = TypeVar("T")

SETTINGS = settings(stateful_step_count=60, suppress_health_check=list(HealthCheck))
POLICY = Policy.of(
    max_attempts=MAX_ATTEMPTS,
    max_abandonments=MAX_ABANDONMENTS,
    lease=f"{LEASE}m",
    backoff=[f"{wait}m" for wait in BACKOFF],
    expires_after=f"{EXPIRES}m",
)
MOST = 4
# How often each move is tried. One rule draws them all: hypothesis would switch whole rules off in most runs,
# and without claims, or without time, nothing much happens.
MOVES = {
    "publish": 4,
    "publish_again": 1,
    "cancel": 1,
    "requeue": 2,
    "claim": 8,
    "complete": 2,
    "fail": 6,
    "bury": 1,
    "release": 2,
    "snooze": 2,
    "extend": 2,
    "advance": 4,
    "upkeep": 4,
    "lapse": 4,
}


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


class Machine(RuleBasedStateMachine):
    """Each run plays on a channel of its own. `choice` is whatever a move has to choose."""

    backend: Backend
    loop: asyncio.AbstractEventLoop
    channels = count()

    def run(self, verb: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(verb)

    @initialize()
    def begin(self) -> None:
        self.model = Model()
        self.channel = f"model-{next(self.channels)}"
        self.held: list[Job] = []
        self.tokens: dict[tuple[str, int], int] = {}
        self.run(self.backend.channels.subscribe(self.channel, CONSUMER, POLICY))
        self.base: datetime = self.run(self.backend.now())

    @rule(
        move=st.sampled_from([move for move, weight in MOVES.items() for _ in range(weight)]),
        choice=st.integers(0, 11),
    )
    def play(self, move: str, choice: int) -> None:
        self.model.steps += 1
        getattr(self, f"do_{move}", lambda choice: self.answer(move, choice))(choice)

    def teardown(self) -> None:
        for name, job in self.model.jobs.items():  # leave nothing for the next run's lifecycle
            if job.state is State.LEASED:
                self.run(self.backend.leases.requeue(self.channel, CONSUMER, self.kept(name).id))
            self.run(self.backend.leases.cancel(self.channel, "default", name, None))

    def kept(self, name: str) -> JobRecord:
        return self.run(record(self.backend, name, channel=self.channel))

    def chosen(self, choice: int) -> ModelJob | None:
        return self.model.jobs[str(choice % len(self.model.jobs))] if self.model.jobs else None

    # what producers and operators do

    def do_publish(self, choice: int) -> None:
        if len(self.model.jobs) < MOST:
            name, priority = str(len(self.model.jobs)), choice % 2
            at = (None, None, self.model.minutes - 5, self.model.minutes + 15)[choice % 4]
            when = None if at is None else self.base + minutes(at)
            self.run(self.backend.log.publish(self.channel, [Event(1, name)], at=when, priority=priority))
            self.model.publish(name, priority, at)

    def do_publish_again(self, choice: int) -> None:
        if job := self.chosen(choice):
            [receipt] = self.run(self.backend.log.publish(self.channel, [Event(1, job.id)]))
            assert receipt.duplicate

    def do_cancel(self, choice: int) -> None:
        if job := self.chosen(choice):
            cancelled = self.run(self.backend.leases.cancel(self.channel, "default", job.id, None))
            assert cancelled == self.model.cancel(job)

    def do_requeue(self, choice: int) -> None:
        if job := self.chosen(choice):
            requeued = self.run(self.backend.leases.requeue(self.channel, CONSUMER, self.kept(job.id).id))
            assert requeued == self.model.requeue(job)

    # what workers do

    def do_claim(self, choice: int) -> None:
        limit = choice % 3 + 1
        jobs = self.run(self.backend.leases.claim(self.channel, CONSUMER, limit, "model"))
        taken = self.model.claim(limit)
        assert [(job.event.id, job.attempt, job.abandonments) for job in jobs] == [
            (job.id, job.attempts, job.abandonments) for job in taken
        ]
        for lease, job in zip(jobs, taken, strict=True):
            self.see_token(job, lease.token)
        self.held = jobs + self.held

    def see_token(self, job: ModelJob, token: int) -> None:
        """The model counts tokens job by job; those of a store rise, by one or by more (I5)."""
        assert self.tokens.setdefault((job.id, job.token), token) == token
        assert token > self.tokens.get((job.id, job.token - 1), -1)

    def holds(self, lease: Job) -> bool:
        job = self.model.jobs[lease.event.id]
        return self.model.holds(job.id, job.token) and self.tokens[job.id, job.token] == lease.token

    def answer(self, verb: str, choice: int) -> None:
        """From a lease that runs or from a stale one (I5: accepted means that its token was the newest)."""
        running = [lease for lease in self.held if self.holds(lease)]
        among = running if running and choice % 4 else self.held[:6]
        if not among:
            return
        lease = among[choice % len(among)]
        held = self.holds(lease)
        accepted = self.run(self.ask(verb, lease))
        assert accepted == held
        if accepted:
            job = self.model.jobs[lease.event.id]
            more = (45,) if verb in ("snooze", "extend") else ()
            getattr(self.model, verb)(job, *more)

    async def ask(self, verb: str, lease: Job) -> bool:
        match verb:
            case "complete":
                return await complete(self.backend, lease)
            case "bury":
                return await bury(self.backend, lease)
            case "fail":
                verdict = after_failure(lease, POLICY, BOOM, terminal=False, chance=random.Random(0))
                if isinstance(verdict, Retry):
                    return (await self.backend.leases.retry([verdict]))[0]
                return (await self.backend.leases.bury([verdict]))[0]
            case "extend":
                return (await self.backend.leases.extend([lease], minutes(45)))[0]
        return (await self.backend.leases.retry([Retry(lease, None if verb == "release" else minutes(45))]))[
            0
        ]

    # what time does

    def do_advance(self, choice: int) -> None:
        by = (5, 10, LEASE, 10, EXPIRES, 10, 60, 5)[choice % 8]
        self.run(self.backend.advance(minutes(by)))
        self.model.minutes += by

    def do_upkeep(self, choice: int) -> None:
        self.run(step(self.backend))
        self.model.upkeep()

    def do_lapse(self, choice: int) -> None:
        """Every running lease ends."""
        self.run(self.backend.advance(minutes(45)))
        self.model.minutes += 45
        self.do_upkeep(choice)

    @invariant()
    def the_backend_agrees(self) -> None:
        counted: Counter[State] = Counter()
        for name, job in self.model.jobs.items():
            kept = self.kept(name)  # I1: each is somewhere, and only there
            counted[kept.state] += 1
            self.see_token(job, kept.token)
            found = kept.state, kept.attempts, kept.abandonments
            assert found == (job.state, job.attempts, job.abandonments), name
            assert job.completions == (job.state is State.DONE)  # I4
            assert 0 <= kept.attempts <= MAX_ATTEMPTS  # I4
        if self.model.jobs:  # I3: inserted = sum of the states, and counters equal counts
            assert self.run(states(self.backend, channel=self.channel)) == counted


@pytest.mark.parametrize("plays", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_the_backend_and_the_model_agree(store: Store, plays: int) -> None:
    class Play(Machine):
        backend = connect_backend(store.url, connections=1)

    with asyncio.Runner() as runner:
        Play.loop = runner.get_loop()
        runner.run(Play.backend.open())
        try:
            run_state_machine_as_test(Play, settings=settings(SETTINGS, max_examples=plays))
        finally:
            runner.run(Play.backend.close())
