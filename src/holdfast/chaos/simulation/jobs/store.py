"""The simulated store of jobs: what the contract says, in memory, with a turn before and after each verb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from holdfast.chaos.simulation.jobs.ledger import Ledger
from holdfast.chaos.simulation.jobs.rows import Row
from holdfast.contracts import Applied, Reading
from holdfast.model.decide import Action, Due, DueKind, Move
from holdfast.model.errors import IdConflict
from holdfast.model.event import Event, Receipt
from holdfast.model.job import Burial, Job, Reason, Retry, State
from holdfast.model.policy import Policy


class JobStore(Ledger):
    """One channel with its worker consumers."""

    # the log

    async def publish(
        self, channel: str, events: Sequence[Event], *, at: datetime | None = None, priority: int = 0
    ) -> list[Receipt]:
        """See the contract."""
        await self._asked("publish")
        rivals = [e.id for e in events if (known := self._known(e)) and known.event.data != e.data]
        if rivals:
            raise IdConflict(channel, rivals)
        receipts = [self._append(event, at, priority) for event in events]
        await self._answered("publish")
        return receipts

    # leases

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """See the contract."""
        await self._asked("claim")
        now, policy = self.stage.now, self.policies[consumer]
        ready = [row for row in self._of(consumer) if self._is_claimable(row, policy)]
        ready.sort(key=lambda row: (-row.priority, row.due_at, row.position))
        jobs = []
        for row in ready[:limit]:
            self._become(row, State.LEASED)
            row.token += 1
            row.attempts += 1
            row.lease_until, row.worker = now + policy.lease, worker
            self.judge.claimed(row)
            self.stage.say(f"{row.name} under token {row.token}, attempt {row.attempts}")
            jobs.append(row.lease())
        await self._answered("claim")
        return jobs

    def _is_claimable(self, row: Row, policy: Policy) -> bool:
        if row.state is not State.READY or (row.expires_at is not None and row.expires_at <= self.stage.now):
            return False
        return not policy.ordered or row.event.key is None or self._is_head(row)

    def _is_head(self, row: Row) -> bool:
        """Whether no earlier one of its key is live."""
        return not any(
            each.live and each.event.key == row.event.key and each.position < row.position
            for each in self._of(row.consumer)
        )

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """See the contract."""
        await self._asked("complete")
        accepted = [self._end(job, State.DONE, "complete") for job in jobs]
        await self._answered("complete")
        return accepted

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """See the contract."""
        await self._asked("retry")
        accepted = [self._back(each) for each in retries]
        await self._answered("retry")
        return accepted

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """See the contract."""
        await self._asked("bury")
        accepted = [
            self._end(each.job, self._grave(each.job.consumer), "bury", each.reason) for each in burials
        ]
        await self._answered("bury")
        return accepted

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """See the contract."""
        await self._asked("extend")
        accepted = [self._prolong(job, by) for job in jobs]
        await self._answered("extend")
        return accepted

    def _prolong(self, job: Job, by: timedelta) -> bool:
        row = self._held(job)
        if row is not None:
            row.lease_until = self.stage.now + by
            self.judge.extended(row, job.token)
        return row is not None

    def _held(self, job: Job) -> Row | None:
        """The job's row while its lease is the newest; otherwise whatever was asked for is refused."""
        row = self.rows[job.consumer, job.position]
        if row.state is State.LEASED and self._is_newest(row, job.token):
            return row
        self.stage.count("refused by token")
        self.stage.say(f"{row.name} refused: token {job.token}, it is {row.state} under {row.token}")
        return None

    def _is_newest(self, row: Row, token: int) -> bool:
        return row.token == token

    def _end(self, job: Job, state: State, verb: str, reason: Reason | None = None) -> bool:
        row = self._held(job)
        if row is not None:
            row.reason = reason
            self._move(row, state, verb, job.token)
        return row is not None

    def _back(self, retry: Retry) -> bool:
        row, delay = self._held(retry.job), retry.delay
        if row is None:
            return False
        row.attempts -= retry.failure is None
        if delay is not None:
            row.due_at = self.stage.now + delay
        verb = "give back" if retry.failure is None else "retry"
        self._move(row, State.SCHEDULED if delay else State.READY, verb, retry.job.token)
        return True

    # operators

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        """See the contract."""
        await self._asked("requeue")
        row = self.rows[consumer, job_id]
        found = row.live or row.state is State.DEAD
        if found:
            row.token += 1
            row.attempts = row.abandonments = 0
            after = self.policies[consumer].expires_after
            row.due_at, row.expires_at = self.stage.now, None if after is None else self.stage.now + after
            self._move(row, State.READY, "requeue", row.token)
        await self._answered("requeue")
        return found

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        """See the contract."""
        await self._asked("cancel")
        waiting = [row for row in self.rows.values() if row.event.id == event_id and row.waits]
        for row in waiting:
            self._move(row, State.CANCELLED, "cancel", row.token)
        await self._answered("cancel")
        return len(waiting)

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        """See the contract."""
        await self._asked("purge")
        dead = [row for each in job_ids if (row := self.rows[consumer, each]).state is State.DEAD]
        for row in dead:
            self._move(row, State.PURGED, "purge", row.token)
        await self._answered("purge")
        return [self.rows[consumer, each] in dead for each in job_ids]

    def set_policy(self, consumer: str, policy: Policy) -> None:
        """Other budgets from now on."""
        self.policies[consumer] = policy
        self.judge.policy_changed(consumer, policy)

    # the lifecycle

    async def due(self, limit: int) -> Reading:
        """See the contract."""
        await self._asked("read what is due")
        found = list(self._due())
        await self._answered("read what is due")
        return Reading(found[:limit], [], len(self.rows), len(found) > limit)

    def _due(self) -> Iterator[Due]:
        now = self.stage.now
        for row in self.rows.values():
            expired = row.expires_at is not None and row.expires_at <= now
            if row.state is State.LEASED and self._is_overdue(row):
                yield self._as_due(DueKind.LEASE, row, expired=expired)
            elif row.waits and expired:
                yield self._as_due(DueKind.EXPIRY, row, expired=True)
            elif row.state is State.SCHEDULED and row.due_at <= now:
                yield self._as_due(DueKind.SCHEDULE, row, expired=False)

    def _as_due(self, kind: DueKind, row: Row, *, expired: bool) -> Due:
        policy = self.policies[row.consumer]
        spent = (row.attempts, row.abandonments, expired, policy.max_attempts, policy.max_abandonments)
        return Due(kind, (row.consumer, row.position), row.token, *spent, row.worker, policy.max_runs)

    def _is_overdue(self, row: Row) -> bool:
        return row.lease_until is not None and row.lease_until <= self.stage.now

    async def apply(self, actions: Sequence[Action]) -> Applied:
        """See the contract. Each action is a step of its own: what comes in between may refuse the next."""
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
            self.stage.count("refused by the second look")
            self.stage.say(f"{action.move} of {row.name} refused: it is {row.state} under {row.token}")
            return
        match action.move:
            case Move.PROMOTE:
                self._move(row, State.READY, "promote", row.token)
                applied.promoted += 1
            case Move.ABANDON:
                self._take_back(row)
                row.due_at = self.stage.now
                self._move(row, State.READY, "abandon", action.due.token)
                applied.abandoned += 1
            case Move.BURY:
                row.reason = action.reason
                if action.due.kind is DueKind.LEASE:
                    self._take_back(row)
                verb = "crash loop" if action.due.kind is DueKind.LEASE else "expire"
                self._move(row, self._grave(row.consumer), verb, action.due.token)
                applied.buried += 1

    def _still_holds(self, action: Action, row: Row) -> bool:
        """Phase two looks again: the job may have been completed, extended or leased since."""
        if action.move is Move.PROMOTE:
            return row.state is State.SCHEDULED and row.due_at <= self.stage.now
        if row.token != action.due.token:
            return False
        if action.due.kind is DueKind.EXPIRY:
            return row.waits and row.expires_at is not None and row.expires_at <= self.stage.now
        return row.state is State.LEASED and self._is_overdue(row)

    def _take_back(self, row: Row) -> None:
        """A worker vanished: that costs no attempt."""
        row.attempts -= 1
        row.abandonments += 1
