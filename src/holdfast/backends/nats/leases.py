"""Jobs: leased and ended by workers, changed and looked at by operators."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.ingest import JobIngest
from holdfast.backends.nats.state.job_records import StoredJob, job_number, shown
from holdfast.backends.nats.state.publish_outcome import IdempotencyKeys
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.state.transitions import Transitions, TransitionStep
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import Stale
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.model.decide import DueKind, describe
from holdfast.model.errors import InvalidInput, Overloaded, Unavailable
from holdfast.model.job import Burial, Failure, Job, JobRecord, Reason, Retry
from holdfast.model.states import State

log = logging.getLogger(__name__)

_Decision = Callable[[Member], Callable[[StoredJob, int], StoredJob]]
_MOST, _MOST_RIVALS = 900, 8
_CANCELLED = 400
"""Jobs that one batch cancels: the end of most of them takes two messages."""
_WAITING = (State.READY, State.SCHEDULED)
_LOST = describe("its event was removed from the log by another client")


class Leases:
    """Changes of jobs: of leased ones under their tokens, of single ones as an operator asks."""

    def __init__(
        self,
        store: NatsStore,
        entries: Entries,
        keys: IdempotencyKeys,
        ingest: JobIngest,
        transitions: Transitions,
    ) -> None:
        self._store, self._entries, self._keys = store, entries, keys
        self._ingest, self._transitions = ingest, transitions
        self._rivals: Counter[str] = Counter()
        """By consumer: how many others seem to claim at the same time. It rises with every lost race."""

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """Lease a batch. Whoever loses a race for it looks again, at the log only where no job is left: what
        it has seen grows old while it asks, and the next race is lost as well."""
        full, caught_up, races = None, False, 0
        now = await self._store.fresh()
        for _ in range(1, TRIES):
            member = self._store.registry.member(channel, consumer)
            if member.paused:
                return []
            try:
                if not caught_up:
                    full = await self._catch_up(member, min(limit, _MOST), now)
                async with self._store.lock(member.ref):
                    jobs, lost = await self._take(member, min(limit, _MOST), worker, now, races)
            except Stale:
                self._rivals[member.ref] = min(self._rivals[member.ref] + 1, _MOST_RIVALS)
                races += 1
                await self._store.wait_after(races)
                now, caught_up = await self._store.fresh(), True
                continue
            if caught_up and not jobs and not lost:
                caught_up = False
                continue
            if full is not None and not jobs and not lost:
                raise full
            self._rivals[member.ref] //= 1 + (races == 0)
            if lost:
                try:
                    await self._transitions.apply([_bury_lost(record, member) for record in lost], now)
                except Exception as error:
                    self._store.mirror.queues.give_back(lost)
                    if not jobs:
                        raise
                    log.warning("%s/%s: a claim was cut short: %s", channel, consumer, error)
            if jobs or not lost:
                return jobs
        return []

    async def _take(
        self, member: Member, limit: int, worker: str, now: int, races: int
    ) -> tuple[list[Job], list[StoredJob]]:
        """Lease under the consumer's lock, after so many lost races: away from what others are taking.

        Returns what it leased, and jobs whose event is gone.
        """
        order = self._store.mirror.revision(subjects.key_order(member.ref))
        rivals = self._rivals[member.ref]
        taken = self._store.mirror.queues.take_ready(member.ref, limit, now, rivals, races)
        try:
            return await self._lease(member, taken, worker, now, order)
        except BaseException:
            self._store.mirror.queues.give_back(taken)
            raise

    async def _catch_up(self, member: Member, limit: int, now: int) -> Overloaded | None:
        """Make jobs of what was appended, as many as are asked for: all of a long log would take too long.

        A store that is too full for more hands out those that it has.
        """
        mirror = self._store.mirror
        try:
            await self._ingest.catch_up(member, lambda: mirror.queues.has_ready(member.ref, limit, now))
        except Overloaded as error:
            return error
        return None

    async def _lease(
        self, member: Member, taken: list[StoredJob], worker: str, now: int, order: int
    ) -> tuple[list[Job], list[StoredJob]]:
        if not taken:
            return [], []
        found = await self._entries.of_jobs(member.channel, taken)
        there = [record for record in taken if record.seq in found]
        events = await self._entries.events(found[record.seq] for record in there)
        kept = {record.seq: event for record, event in zip(there, events, strict=True) if event is not None}
        deadline = now + to_micros(member.policy.lease)
        batch, jobs = self._store.batch(member.ref), list[Job]()
        for record in taken:
            event = kept.get(record.seq)
            if event is None:
                continue
            leased = replace(
                record,
                state=State.LEASED,
                attempts=record.attempts + 1,
                token=max(record.token, self._store.registry.tokens) + 1,
                lease=deadline,
                worker=worker,
            )
            batch.replace(record, leased)
            jobs.append(
                Job(
                    record.id,
                    member.channel,
                    member.name,
                    event,
                    self._store.registry.position(record.seq),
                    leased.attempts,
                    leased.abandonments,
                    leased.token,
                    from_micros(deadline),
                )
            )
        if member.policy.ordered:
            batch.expect_key_order(order)
        if jobs:
            await self._store.commit(batch.messages())
        return jobs, [record for record in taken if record.seq not in kept]

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._apply([(job, lambda _: _done) for job in jobs])

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        more = to_micros(by)

        def extended(record: StoredJob, now: int) -> StoredJob:
            return replace(record, lease=now + more)

        return await self._apply([(job, lambda _: extended) for job in jobs])

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        return await self._apply([(each.job, _retried(each)) for each in retries])

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self._apply([(each.job, _buried(each)) for each in burials])

    async def _apply(self, changes: Sequence[tuple[Job, _Decision]]) -> list[bool]:
        if not changes:
            return []
        now = await self._store.fresh()
        members = self._store.registry.by_name
        steps: list[TransitionStep | None] = []
        for job, decide in changes:
            member = members.get((job.channel, job.consumer))
            if member is None or not job.id.isdigit():
                steps.append(None)
            else:
                steps.append(TransitionStep(member.ref, int(job.id), _holds(job.token), decide(member)))
        return await self._transitions.apply(steps, now)

    # operators

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        now = await self._store.fresh()
        seq = await self._seq(channel, source, event_id)
        if seq is None:
            return 0
        members = self._store.registry.by_channel.get(channel, ())
        chosen = [member for member in members if consumer in (None, member.name)]

        def waits(record: StoredJob, now: int) -> bool:
            return record.state in _WAITING and (record.source, record.event) == (source, event_id)

        steps = [TransitionStep(member.ref, seq, waits, _cancelled) for member in chosen]
        return sum(await self._transitions.apply(steps, now))

    async def cancel_waiting(self, channel: str, consumer: str, limit: int) -> int:
        for races in range(1, TRIES):
            now = await self._store.fresh()
            member = self._store.registry.member(channel, consumer)
            try:
                full = await self._make_some(member, limit, now)
            except Stale:
                await self._store.look_again(races)
                continue
            waiting = self._store.mirror.queues.waiting(member.ref, min(limit, _CANCELLED))
            steps = [TransitionStep(member.ref, record.seq, _waits, _cancelled) for record in waiting]
            if (cancelled := sum(await self._transitions.apply(steps, now))) or not waiting:
                if full is not None and not cancelled:
                    raise full
                return cancelled
        raise Unavailable(f"the jobs of {consumer!r} of {channel!r} change too often; try again")

    async def _make_some(self, member: Member, limit: int, now: int) -> Overloaded | None:
        """Make jobs of the past and of what was appended, until some wait or all are made. Raises `Stale`."""
        while self._is_in_the_past(member):
            if not await self._ingest.backfill(member.ref, _MOST) and self._is_in_the_past(member):
                raise Stale("others make the jobs of the past, or the store is full")
            if self._store.mirror.queues.waiting(member.ref, 1):
                return None
        return await self._catch_up(member, min(limit, _MOST), now)

    def _is_in_the_past(self, member: Member) -> bool:
        cursor = self._store.mirror.cursors.get(member.ref)
        return cursor is not None and cursor.target is not None

    async def _seq(self, channel: str, source: str, event_id: str) -> int | None:
        """Return an event's sequence. What others have appended becomes jobs first, and gets its keys."""
        try:
            key = subjects.key(channel, source, event_id)
        except UnicodeEncodeError:
            raise InvalidInput(f"{event_id!r} of {source!r} is no text that a store could hold") from None
        await self._ingest.level_channel(channel)
        known = (await self._keys.find(channel, [key])).get(key)
        if known is not None:
            return known.place
        # Its key may be forgotten; a dead letter is found all the same.
        copies = await self._store.connection.last([subjects.copy(channel, source, event_id)])
        kept = [each for each in copies if subjects.CE_ID in each.headers]
        return subjects.copied(kept[-1].subject) if kept else None

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        seq = job_number(job_id)
        for _ in range(TRIES):
            now = await self._store.fresh()
            member = self._store.registry.by_name.get((channel, consumer))
            if member is None:
                return False
            async with self._store.lock(member.ref):
                try:
                    requeued = await self._requeue(member, seq, now)
                except Stale:
                    continue
            if requeued:
                await self._transitions.wake({channel})
            return requeued
        raise Unavailable(f"job {job_id} changes too often to requeue it; try again")

    async def _requeue(self, member: Member, seq: int, now: int) -> bool:
        batch, order = (
            self._store.batch(member.ref),
            self._store.mirror.revision(subjects.key_order(member.ref)),
        )
        live = self._store.mirror.queues.job(member.ref, seq)
        old = live or (await self._ended([member], seq)).get(member.ref)
        if old is None or (live is None and old.state is not State.DEAD):
            return False
        new = old.anew(now, member.policy.expires_after)
        if live is None:
            batch.revive(old, new)
        else:
            batch.replace(old, new)
        if member.policy.ordered:
            batch.raise_key_order(order)
        await self._store.commit(batch.messages())
        return True

    async def _ended(self, members: list[Member], seq: int) -> dict[str, StoredJob]:
        """Return a job that has ended, for each of the consumers that know it."""
        places = (subjects.ended, subjects.dead)
        wanted = {place(member.ref, seq): member.ref for member in members for place in places}
        found = await self._store.connection.last(list(wanted)) if wanted else []
        return {wanted[each.subject]: job_records.decode(each.data, each.seq) for each in found if each.data}

    async def stuck(self, limit: int) -> list[JobRecord]:
        now = await self._store.fresh()
        leases = self._store.mirror.queues.due[DueKind.LEASE]
        found = leases.peek(limit, lambda record: record.state is State.LEASED, now)
        return [self._shown(self._store.registry.members[record.ref], record) for record in found]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        await self._store.fresh()
        seq = await self._seq(channel, source, event_id)
        if seq is None:
            return []
        members = self._store.registry.by_channel.get(channel, [])
        jobs = {member.ref: self._store.mirror.queues.job(member.ref, seq) for member in members}
        found = {ref: job for ref, job in jobs.items() if job is not None}
        if len(found) < len(members):
            found = await self._ended([each for each in members if each.ref not in found], seq) | found
        asked = (source, event_id)  # in the place of one that was never stored another may stand
        mine = {ref: record for ref, record in found.items() if (record.source, record.event) == asked}
        return [self._shown(member, mine[member.ref]) for member in members if member.ref in mine]

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        await self._store.fresh()
        member, seq = self._store.registry.by_name.get((channel, consumer)), job_number(job_id)
        if member is None:
            return None
        await self._ingest.level(member)
        live = self._store.mirror.queues.job(member.ref, seq)
        found = live or (await self._ended([member], seq)).get(member.ref)
        return None if found is None else self._shown(member, found)

    def _shown(self, member: Member, record: StoredJob) -> JobRecord:
        return shown(record, member.channel, member.name, self._store.registry.position(record.seq))


def _holds(token: int) -> Callable[[StoredJob, int], bool]:
    return lambda record, now: record.state is State.LEASED and record.token == token


def _done(record: StoredJob, now: int) -> StoredJob:
    return record.at_end(State.DONE, now)


def _retried(retry: Retry) -> _Decision:
    _, delay, failure = retry

    def change(record: StoredJob, now: int) -> StoredJob:
        state = State.SCHEDULED if delay else State.READY
        due = record.due if delay is None else now + to_micros(delay)
        given_back = record.attempts - (failure is None)
        return record.waiting(state, due, attempts=given_back, errors=record.failed(failure, now))

    return lambda _: change


def _buried(burial: Burial) -> _Decision:
    return lambda member: buried(member, burial.reason, burial.failure)


def buried(
    member: Member | None, reason: Reason, failure: Failure, *, overdue: bool = False
) -> Callable[[StoredJob, int], StoredJob]:
    """Return the change to dead, or discarded. `overdue`: the attempt ended without a result."""
    discard = member is not None and member.policy.on_dead == "discard"

    def change(record: StoredJob, now: int) -> StoredJob:
        return record.at_end(
            State.DISCARDED if discard else State.DEAD,
            now,
            reason=reason.value,
            errors=record.failed(failure, now),
            attempts=record.attempts - overdue,
            abandonments=record.abandonments + overdue,
        )

    return change


def _bury_lost(record: StoredJob, member: Member) -> TransitionStep:
    def unchanged(found: StoredJob, now: int) -> bool:
        return found.revision == record.revision

    return TransitionStep(record.ref, record.seq, unchanged, buried(member, Reason.TERMINAL, _LOST))


def _waits(record: StoredJob, now: int) -> bool:
    return record.state in _WAITING


def _cancelled(record: StoredJob, now: int) -> StoredJob:
    return record.at_end(State.CANCELLED, now)
