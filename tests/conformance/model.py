"""A small, pure model of jobs: what every backend must agree with, step by step. Their states follow the one
table; order, deadlines and budgets are the model's own.

Time is a whole number of minutes. Each deadline also carries the number of the step that set it: within one
minute the store's clock has moved on between two steps, and that decides the order of jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.model.states import State, Verb, follows

Moment = tuple[int, int]

MAX_ATTEMPTS = MAX_ABANDONMENTS = 2
LEASE, BACKOFF, EXPIRES = 30, (10, 40), 240


@dataclass
class ModelJob:
    """One event for the one consumer."""

    id: str
    seq: int
    priority: int
    due: Moment
    expires: Moment
    state: State
    attempts: int = 0
    abandonments: int = 0
    token: int = 0
    lease_until: Moment = (0, 0)
    completions: int = 0

    @property
    def waiting(self) -> bool:
        return self.state in (State.SCHEDULED, State.READY)

    def move(self, verb: Verb) -> bool:
        """Whether the table allows it."""
        after = follows(self.state, verb)
        if after is not None:
            self.state = after
        return after is not None


@dataclass
class Model:
    """Every rule of the state machine, on plain values."""

    minutes: int = 0
    steps: int = 0
    jobs: dict[str, ModelJob] = field(default_factory=dict)

    @property
    def now(self) -> Moment:
        return self.minutes, self.steps

    def after(self, minutes: int) -> Moment:
        return self.minutes + minutes, self.steps

    def publish(self, event_id: str, priority: int, at: int | None) -> None:
        due = self.now if at is None or at <= self.minutes else (at, 0)
        self.jobs[event_id] = ModelJob(
            event_id,
            len(self.jobs),
            priority,
            due,
            (due[0] + EXPIRES, due[1]),
            State.READY if due == self.now else State.SCHEDULED,
        )

    def claim(self, limit: int) -> list[ModelJob]:
        ready = [job for job in self.jobs.values() if job.state is State.READY and job.expires > self.now]
        taken = sorted(ready, key=lambda job: (-job.priority, job.due, job.seq))[:limit]
        for job in taken:
            job.move(Verb.CLAIM)
            job.lease_until = self.after(LEASE)
            job.attempts += 1
            job.token += 1
        return taken

    def holds(self, event_id: str, token: int) -> bool:
        """Whether a lease is the newest and still runs or was not yet taken away."""
        job = self.jobs[event_id]
        return job.state is State.LEASED and job.token == token

    def complete(self, job: ModelJob) -> None:
        job.completions += job.move(Verb.COMPLETE)

    def fail(self, job: ModelJob) -> None:
        if job.attempts >= MAX_ATTEMPTS:
            self.bury(job)
        else:
            job.move(Verb.RETRY)
            job.due = self.after(BACKOFF[min(job.attempts, len(BACKOFF)) - 1])

    def bury(self, job: ModelJob) -> None:
        job.move(Verb.BURY)

    def release(self, job: ModelJob) -> None:
        job.attempts -= job.move(Verb.RELEASE)

    def snooze(self, job: ModelJob, minutes: int) -> None:
        job.attempts -= job.move(Verb.RETRY)
        job.due = self.after(minutes)

    def extend(self, job: ModelJob, minutes: int) -> None:
        job.lease_until = self.after(minutes)

    def cancel(self, job: ModelJob, verb: Verb = Verb.CANCEL) -> bool:
        return job.move(verb)

    def requeue(self, job: ModelJob) -> bool:
        if not job.move(Verb.REQUEUE):
            return False
        job.due, job.attempts, job.abandonments = self.now, 0, 0
        job.expires = self.after(EXPIRES)
        job.token += 1
        return True

    def upkeep(self) -> None:
        """One whole step of the lifecycle."""
        for job in self.jobs.values():
            if job.state is State.LEASED and job.lease_until <= self.now:
                self._abandon(job)
            elif job.waiting and job.expires <= self.now:
                job.move(Verb.EXPIRE)
            elif job.state is State.SCHEDULED and job.due <= self.now:
                job.move(Verb.PROMOTE)

    def _abandon(self, job: ModelJob) -> None:
        job.attempts -= 1
        job.abandonments += 1
        if job.abandonments >= MAX_ABANDONMENTS or job.expires <= self.now:
            job.move(Verb.CRASH_LOOP)
        else:
            job.move(Verb.ABANDON)
            job.due = self.now
