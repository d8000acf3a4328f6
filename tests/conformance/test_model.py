"""Any sequence of verbs: after each one the real backend and the model agree, and the invariants hold."""

from __future__ import annotations

import asyncio
import itertools
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
from holdfast.model.job import Burial, Cancellation, Job, JobRecord, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.states import State, Verb
from holdfast.wiring import backend as connect_backend
from kit import BOOM, CONSUMER, record, states, step
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
# How often each move is tried. One rule draws them all: hypothesis would switch whole rules off in most runs,
# and without claims, or without time, nothing much happens.
MOVES = {
    "publish": 4,
    "publish_again": 1,
    "cancel": 1,
    "cancel_running": 1,
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


# The same for leases of many jobs: some of them end together, others leave the lease, and what waits is
# changed ahead of its turn.
MOVES_OF_MANY = {
    "publish_some": 5,
    "publish": 1,
    "cancel": 2,
    "cancel_running": 2,
    "cancel_waiting": 1,
    "requeue": 2,
    "claim": 6,
    "complete": 5,
    "fail": 2,
    "bury": 1,
    "release": 2,
    "snooze": 1,
    "extend": 3,
    "advance": 3,
    "upkeep": 2,
    "lapse": 2,
}


def minutes(number: int) -> timedelta:
    return timedelta(minutes=number)


class Machine(RuleBasedStateMachine):
    """Each run plays on a channel of its own. `choice` is whatever a move has to choose."""

    backend: Backend
    loop: asyncio.AbstractEventLoop
    channels = count()
    most_jobs, most_claimed, most_answers = 4, 3, 1

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

    def move(self, move: str, choice: int) -> None:
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
        if len(self.model.jobs) < self.most_jobs:
            name, priority = str(len(self.model.jobs)), choice % 2
            at = (None, None, self.model.minutes - 5, self.model.minutes + 15)[choice % 4]
            when = None if at is None else self.base + minutes(at)
            self.run(self.backend.log.publish(self.channel, [Event(1, name)], at=when, priority=priority))
            self.model.publish(name, priority, at)

    def do_publish_some(self, choice: int) -> None:
        first = len(self.model.jobs)
        names = [str(first + n) for n in range(min(choice % 5 + 1, self.most_jobs - first))]
        self.run(self.backend.log.publish(self.channel, [Event(1, name) for name in names]))
        for name in names:
            self.model.publish(name, 0, None)

    def do_publish_again(self, choice: int) -> None:
        if job := self.chosen(choice):
            [receipt] = self.run(self.backend.log.publish(self.channel, [Event(1, job.id)]))
            assert receipt.duplicate

    def do_cancel(self, choice: int) -> None:
        if job := self.chosen(choice):
            cancelled = self.run(self.backend.leases.cancel(self.channel, "default", job.id, None))
            assert cancelled == self.model.cancel(job)

    def do_cancel_running(self, choice: int) -> None:
        if job := self.chosen(choice):
            how = Cancellation(running=True, by="model", reason=f"choice {choice}")
            cancelled = self.run(self.backend.leases.cancel(self.channel, "default", job.id, None, how))
            assert cancelled == self.model.cancel(job, Verb.CANCEL_RUNNING)
            if cancelled:
                kept = self.kept(job.id)
                assert (kept.cancelled_by, kept.reason) == ("model", how.reason)

    def do_cancel_waiting(self, choice: int) -> None:
        """All that waits, in steps."""
        cancelled = 0
        while some := self.run(self.backend.leases.cancel_waiting(self.channel, CONSUMER, choice + 1)):
            cancelled += some
        assert cancelled == sum(self.model.cancel(job) for job in self.model.jobs.values())

    def do_requeue(self, choice: int) -> None:
        if job := self.chosen(choice):
            requeued = self.run(self.backend.leases.requeue(self.channel, CONSUMER, self.kept(job.id).id))
            assert requeued == self.model.requeue(job)

    # what workers do

    def do_claim(self, choice: int) -> None:
        limit = choice % self.most_claimed + 1
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
        """From leases that run or from stale ones (I5: accepted means that the token was the newest)."""
        running = [lease for lease in self.held if self.holds(lease)]
        among = running if running and choice % 4 else self.held[: 6 * self.most_answers]
        if not among:
            return
        first = choice % len(among)
        by_id = {lease.event.id: lease for lease in among[first :: choice % 3 + 1]}
        leases = list(by_id.values())[: choice % self.most_answers + 1]
        held = [self.holds(lease) for lease in leases]
        accepted = self.run(self.ask(verb, leases))
        assert accepted == held
        more = (45,) if verb in ("snooze", "extend") else ()
        for lease in itertools.compress(leases, accepted):
            getattr(self.model, verb)(self.model.jobs[lease.event.id], *more)

    async def ask(self, verb: str, leases: list[Job]) -> list[bool]:
        verbs = self.backend.leases
        match verb:
            case "complete":
                return await verbs.complete(leases)
            case "extend":
                return await verbs.extend(leases, minutes(45))
            case "bury":
                return await verbs.bury([Burial(lease, Reason.TERMINAL, BOOM) for lease in leases])
            case "fail":
                return await self.fail(leases)
        delay = None if verb == "release" else minutes(45)
        return await verbs.retry([Retry(lease, delay) for lease in leases])

    async def fail(self, leases: list[Job]) -> list[bool]:
        chance = random.Random(0)
        verdicts = [after_failure(lease, POLICY, BOOM, terminal=False, chance=chance) for lease in leases]
        retries = [verdict for verdict in verdicts if isinstance(verdict, Retry)]
        burials = [verdict for verdict in verdicts if isinstance(verdict, Burial)]
        # Each verb once: what is tried again together is due at the same moment.
        retried = iter(await self.backend.leases.retry(retries))
        buried = iter(await self.backend.leases.bury(burials))
        return [next(retried if isinstance(verdict, Retry) else buried) for verdict in verdicts]

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


def drawn(moves: dict[str, int]) -> st.SearchStrategy[str]:
    return st.sampled_from([move for move, weight in moves.items() for _ in range(weight)])


class FewJobs(Machine):
    """Each job by itself."""

    @rule(move=drawn(MOVES), choice=st.integers(0, 11))
    def play(self, move: str, choice: int) -> None:
        self.move(move, choice)


class ManyJobs(Machine):
    """Leases of many jobs."""

    most_jobs, most_claimed, most_answers = 14, 8, 6

    @rule(move=drawn(MOVES_OF_MANY), choice=st.integers(0, 11))
    def play(self, move: str, choice: int) -> None:
        self.move(move, choice)


@pytest.mark.parametrize("machine", [FewJobs, ManyJobs])
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plays", [8, pytest.param(100, marks=pytest.mark.slow)])
def test_the_backend_and_the_model_agree(store: Store, plays: int, machine: type[Machine]) -> None:
    class Play(machine):  # type: ignore[misc, valid-type]
        backend = connect_backend(store.url, connections=1)

    with asyncio.Runner() as runner:
        Play.loop = runner.get_loop()
        runner.run(Play.backend.open())
        try:
            run_state_machine_as_test(Play, settings=settings(SETTINGS, max_examples=plays))
        finally:
            runner.run(Play.backend.close())
