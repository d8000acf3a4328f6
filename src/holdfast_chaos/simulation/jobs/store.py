"""The simulated store of jobs: what the contract says, in memory, with a turn before and after each verb."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from holdfast.contracts import WAITING_ONLY, Applied, Reading
from holdfast.model.decide import Action, Due, DueKind, Move
from holdfast.model.errors import IdConflict
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Cancellation, Job, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.position import format_position
from holdfast.model.states import LIVE, RESULTS, State, Verb, follows
from holdfast_chaos.simulation.actors import Turn
from holdfast_chaos.simulation.scheduler import Scheduler

if TYPE_CHECKING:  # the checks know the rows of this store
    from holdfast_chaos.simulation.jobs.checks import JobChecks

CHANNEL = "orders"


@dataclass(slots=True, eq=False)
class JobRow:
    """One event for one consumer."""

    consumer: str
    event: Event
    position: str
    due_at: datetime
    expires_at: datetime | None
    priority: int
    state: State
    token: int = 0
    attempts: int = 0
    abandonments: int = 0
    lease_until: datetime | None = None
    worker: str | None = None
    reason: Reason | None = None

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.state in LIVE

    @property
    def waits(self) -> bool:
        """Whether it is live and with nobody."""
        return self.state in (State.READY, State.SCHEDULED)

    @property
    def name(self) -> str:
        """For the trace."""
        return f"{self.consumer}/{self.event.id}"

    def lease(self) -> Job:
        """As a worker gets it."""
        assert self.lease_until is not None  # noqa: S101 - it was leased just now
        return Job(
            self.position,
            CHANNEL,
            self.consumer,
            self.event,
            self.position,
            self.attempts,
            self.abandonments,
            self.token,
            self.lease_until,
        )


class LoggedEvent(NamedTuple):
    """An event as it stands in the log."""

    event: Event
    position: str
    published_at: datetime


class JobStore:
    """One channel with its worker consumers. Whatever changes is told to the checks.

    One object is every noun of the contract: `store.leases.claim(…)` is `store.claim(…)`.
    """

    def __init__(self, scheduler: Scheduler, checks: JobChecks, policies: dict[str, Policy]) -> None:
        self.scheduler, self.checks, self.policies = scheduler, checks, policies
        self.entries: list[LoggedEvent] = []
        self.rows: dict[tuple[str, str], JobRow] = {}
        self.counts: Counter[tuple[str, State]] = Counter()
        self._keys: dict[tuple[str, str], LoggedEvent] = {}
        self._written = 0

    @property
    def log(self) -> Self:
        return self

    @property
    def leases(self) -> Self:
        return self

    @property
    def deadletters(self) -> Self:
        return self

    @property
    def lifecycle(self) -> Self:
        return self

    def _append(self, event: Event, at: datetime | None, priority: int) -> Receipt:
        known = self._known(event)
        if known is not None:
            self.scheduler.say(f"{event.id} is a duplicate")
            return Receipt(event.id, known.position, True)
        self._written += 1
        entry = LoggedEvent(event, format_position(1, self._written), self.scheduler.now)
        self._keys[event.source, event.id] = entry
        self.entries.append(entry)
        self.checks.logged(event, entry.position)
        for consumer, policy in self.policies.items():
            self._create(consumer, policy, entry, at, priority)
        self.scheduler.say(f"{event.id} at {self._written}")
        return Receipt(event.id, entry.position)

    def _known(self, event: Event) -> LoggedEvent | None:
        return self._keys.get((event.source, event.id))

    def _create(
        self, consumer: str, policy: Policy, entry: LoggedEvent, at: datetime | None, priority: int
    ) -> None:
        now = self.scheduler.now
        due = max(at or now, now)
        state = State.SCHEDULED if due > now else State.READY
        expires = None if policy.expires_after is None else due + policy.expires_after
        row = JobRow(consumer, entry.event, entry.position, due, expires, priority, state)
        self.rows[consumer, entry.position] = row
        self._count(row, 1)
        self.checks.created(row, ordered=policy.ordered)

    def discards(self, consumer: str) -> bool:
        """Whether a consumer keeps no dead letters."""
        return self.policies[consumer].on_dead == "discard"

    def _move(self, row: JobRow, verb: Verb, token: int, *, failed: bool = True) -> None:
        """Do what the table of states says, even where it would refuse: guards are before this, and the
        checks after it."""
        before, state = row.state, RESULTS[verb]
        if state is State.DEAD and self.discards(row.consumer):
            state = State.DISCARDED
        self._become(row, state)
        row.lease_until = row.worker = None
        self.scheduler.say(f"{verb} {row.name}: {before} to {state}")
        self.checks.moved(row, before, verb, token, failed=failed, discards=self.discards(row.consumer))

    def _become(self, row: JobRow, state: State) -> None:
        """A move and its count are one step."""
        self._count(row, -1)
        row.state = state
        self._count(row, 1)

    def _count(self, row: JobRow, change: int) -> None:
        self.counts[row.consumer, row.state] += change

    def _of(self, consumer: str) -> list[JobRow]:
        return [row for row in self.rows.values() if row.consumer == consumer]

    async def _asked(self, verb: str) -> None:
        await Turn(verb)
        self.scheduler.refuse(verb)

    async def _answered(self, verb: str) -> None:
        await Turn(f"answer to {verb}")
        self.scheduler.lose(verb)

    # the log

    async def publish(
        self, channel: str, events: Sequence[Event], *, at: datetime | None = None, priority: int = 0
    ) -> list[Receipt]:
        await self._asked("publish")
        conflicts = [e.id for e in events if (known := self._known(e)) and known.event.data != e.data]
        if conflicts:
            raise IdConflict(channel, conflicts)
        receipts = [self._append(event, at, priority) for event in events]
        await self._answered("publish")
        return receipts

    # leases

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        await self._asked("claim")
        now, policy = self.scheduler.now, self.policies[consumer]
        ready = [row for row in self._of(consumer) if self._is_claimable(row, policy)]
        ready.sort(key=lambda row: (-row.priority, row.due_at, row.position))
        jobs = []
        for row in ready[:limit]:
            self._become(row, RESULTS[Verb.CLAIM])
            row.token += 1
            row.attempts += 1
            row.lease_until, row.worker = now + policy.lease, worker
            self.checks.claimed(row)
            self.scheduler.say(f"{row.name} under token {row.token}, attempt {row.attempts}")
            jobs.append(row.lease())
        await self._answered("claim")
        return jobs

    def _is_claimable(self, row: JobRow, policy: Policy) -> bool:
        if row.state is not State.READY or (
            row.expires_at is not None and row.expires_at <= self.scheduler.now
        ):
            return False
        return not policy.ordered or row.event.key is None or self._is_head(row)

    def _is_head(self, row: JobRow) -> bool:
        """Whether no earlier one of its key is live."""
        return not any(
            each.live and each.event.key == row.event.key and each.position < row.position
            for each in self._of(row.consumer)
        )

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        await self._asked("complete")
        accepted = [self._end(job, Verb.COMPLETE) for job in jobs]
        await self._answered("complete")
        return accepted

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        await self._asked("retry")
        accepted = [self._back(each) for each in retries]
        await self._answered("retry")
        return accepted

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        await self._asked("bury")
        accepted = [self._end(each.job, Verb.BURY, each.reason) for each in burials]
        await self._answered("bury")
        return accepted

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        await self._asked("extend")
        accepted = [self._prolong(job, by) for job in jobs]
        await self._answered("extend")
        return accepted

    def _prolong(self, job: Job, by: timedelta) -> bool:
        row = self._held(job)
        if row is not None:
            row.lease_until = self.scheduler.now + by
            self.checks.extended(row, job.token)
        return row is not None

    def _held(self, job: Job) -> JobRow | None:
        """The job's row while its lease is the newest; otherwise whatever was asked for is refused."""
        row = self.rows[job.consumer, job.position]
        if row.state is State.LEASED and self._is_newest(row, job.token):
            return row
        self.scheduler.count("refused by token")
        self.scheduler.say(f"{row.name} refused: token {job.token}, it is {row.state} under {row.token}")
        return None

    def _is_newest(self, row: JobRow, token: int) -> bool:
        return row.token == token

    def _end(self, job: Job, verb: Verb, reason: Reason | None = None) -> bool:
        row = self._held(job)
        if row is not None:
            row.reason = reason
            self._move(row, verb, job.token)
        return row is not None

    def _back(self, retry: Retry) -> bool:
        row, delay = self._held(retry.job), retry.delay
        if row is None:
            return False
        row.attempts -= retry.failure is None
        if delay is not None:
            row.due_at = self.scheduler.now + delay
        verb = Verb.RETRY if delay else Verb.RELEASE
        self._move(row, verb, retry.job.token, failed=retry.failure is not None)
        return True

    # operators

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        await self._asked("requeue")
        row = self.rows[consumer, job_id]
        found = follows(row.state, Verb.REQUEUE) is not None
        if found:
            row.token += 1
            row.attempts = row.abandonments = 0
            after = self.policies[consumer].expires_after
            row.due_at, row.expires_at = (
                self.scheduler.now,
                None if after is None else self.scheduler.now + after,
            )
            self._move(row, Verb.REQUEUE, row.token)
        await self._answered("requeue")
        return found

    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        await self._asked("cancel")
        verb = Verb.CANCEL_RUNNING if how.running else Verb.CANCEL
        found = [row for row in self.rows.values() if row.event.id == event_id and follows(row.state, verb)]
        for row in found:
            self._move(row, verb, row.token)
        await self._answered("cancel")
        return len(found)

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        await self._asked("purge")
        dead = [row for each in job_ids if follows((row := self.rows[consumer, each]).state, Verb.PURGE)]
        for row in dead:
            self._move(row, Verb.PURGE, row.token)
        await self._answered("purge")
        return [self.rows[consumer, each] in dead for each in job_ids]

    def set_policy(self, consumer: str, policy: Policy) -> None:
        """Other budgets from now on."""
        self.policies[consumer] = policy
        self.checks.policy_changed(consumer, policy)

    # the lifecycle

    async def due(self, limit: int) -> Reading:
        await self._asked("read what is due")
        found = list(self._due())
        await self._answered("read what is due")
        return Reading(found[:limit], [], len(self.rows), len(found) > limit)

    def _due(self) -> Iterator[Due]:
        now = self.scheduler.now
        for row in self.rows.values():
            expired = row.expires_at is not None and row.expires_at <= now
            if row.state is State.LEASED and self._is_overdue(row):
                yield self._as_due(DueKind.LEASE, row, expired=expired)
            elif row.waits and expired:
                yield self._as_due(DueKind.EXPIRY, row, expired=True)
            elif row.state is State.SCHEDULED and row.due_at <= now:
                yield self._as_due(DueKind.SCHEDULE, row, expired=False)

    def _as_due(self, kind: DueKind, row: JobRow, *, expired: bool) -> Due:
        policy = self.policies[row.consumer]
        spent = (row.attempts, row.abandonments, expired, policy.max_attempts, policy.max_abandonments)
        return Due(kind, (row.consumer, row.position), row.token, *spent, row.worker, policy.max_runs)

    def _is_overdue(self, row: JobRow) -> bool:
        return row.lease_until is not None and row.lease_until <= self.scheduler.now

    async def apply(self, actions: Sequence[Action]) -> Applied:
        """Each action is a step of its own: what comes in between may refuse the next."""
        applied = Applied()
        for action in actions:
            await self._asked("apply")
            self._apply(action, applied)
        return applied

    def _apply(self, action: Action, applied: Applied) -> None:
        consumer, position = map(str, action.due.ref)
        row = self.rows[consumer, position]
        if not self._still_holds(action, row):
            applied.refused += 1
            self.scheduler.count("refused by the second look")
            self.scheduler.say(f"{action.move} of {row.name} refused: it is {row.state} under {row.token}")
            return
        match action.move:
            case Move.PROMOTE:
                self._move(row, Verb.PROMOTE, row.token)
                applied.promoted += 1
            case Move.ABANDON:
                self._take_back(row)
                row.due_at = self.scheduler.now
                self._move(row, Verb.ABANDON, action.due.token)
                applied.abandoned += 1
            case Move.BURY:
                row.reason = action.reason
                if action.due.kind is DueKind.LEASE:
                    self._take_back(row)
                verb = Verb.CRASH_LOOP if action.due.kind is DueKind.LEASE else Verb.EXPIRE
                self._move(row, verb, action.due.token)
                applied.buried += 1

    def _still_holds(self, action: Action, row: JobRow) -> bool:
        """Phase two looks again: the job may have been completed, extended or leased since."""
        if action.move is Move.PROMOTE:
            return row.state is State.SCHEDULED and row.due_at <= self.scheduler.now
        if row.token != action.due.token:
            return False
        if action.due.kind is DueKind.EXPIRY:
            return row.waits and row.expires_at is not None and row.expires_at <= self.scheduler.now
        return row.state is State.LEASED and self._is_overdue(row)

    def _take_back(self, row: JobRow) -> None:
        """A worker vanished: that costs no attempt."""
        row.attempts -= 1
        row.abandonments += 1
