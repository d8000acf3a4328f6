"""Leases: claim, complete, retry, bury, extend."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.backends.nats import subjects
from holdfast.backends.nats.batch import Stale
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.ingest import Ingest
from holdfast.backends.nats.records import Record
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import TRIES, Store
from holdfast.backends.nats.times import from_micros, to_micros
from holdfast.backends.nats.transitions import Step, Transitions
from holdfast.model.decide import describe
from holdfast.model.errors import Overloaded
from holdfast.model.job import Burial, Failure, Job, Reason, Retry, State

log = logging.getLogger(__name__)

Decision = Callable[[Member], Callable[[Record, int], Record]]
_MOST, _MOST_RIVALS = 900, 8
_LOST = describe("its event was removed from the log by another client")


class Leases:
    """The transitions of leased jobs, each fenced by the job's token."""

    def __init__(self, store: Store, entries: Entries, ingest: Ingest, transitions: Transitions) -> None:
        self._store, self._entries, self._ingest = store, entries, ingest
        self._transitions = transitions
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
                    full = await self._full(member, min(limit, _MOST), now)
                async with self._store.lock(member.ref):
                    jobs, lost = await self._take(member, min(limit, _MOST), worker, now, races)
            except Stale:
                self._rivals[member.ref] = min(self._rivals[member.ref] + 1, _MOST_RIVALS)
                races += 1
                await self._store.back_off(races)
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
    ) -> tuple[list[Job], list[Record]]:
        """One try after so many lost races, for who holds the consumer's lock: what it leased, and jobs whose
        event is gone. It keeps away from those that others are taking."""
        lane = self._store.mirror.revision(subjects.lane(member.ref))
        rivals = self._rivals[member.ref]
        taken = self._store.mirror.queues.take_ready(member.ref, limit, now, rivals, races)
        try:
            return await self._lease(member, taken, worker, now, lane)
        except BaseException:
            self._store.mirror.queues.give_back(taken)
            raise

    async def _full(self, member: Member, limit: int, now: int) -> Overloaded | None:
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
        self, member: Member, taken: list[Record], worker: str, now: int, lane: int
    ) -> tuple[list[Job], list[Record]]:
        if not taken:
            return [], []
        found = await self._entries.of_jobs(member.channel, taken)
        there = [record for record in taken if record.seq in found]
        events = await self._entries.events(found[record.seq] for record in there)
        kept = {record.seq: event for record, event in zip(there, events, strict=True) if event is not None}
        deadline = now + to_micros(member.policy.lease)
        edit, jobs = self._store.edit(member.ref), list[Job]()
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
            edit.replace(record, leased)
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
            edit.heed_lane(lane)
        if jobs:
            await self._store.commit(edit.messages())
        return jobs, [record for record in taken if record.seq not in kept]

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """leased → done."""
        return await self._settle([(job, lambda _: _done) for job in jobs])

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move the deadlines to now plus `by`."""
        more = to_micros(by)

        def extended(record: Record, now: int) -> Record:
            return replace(record, lease=now + more)

        return await self._settle([(job, lambda _: extended) for job in jobs])

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready."""
        return await self._settle([(each.job, _retried(each)) for each in retries])

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """leased → dead."""
        return await self._settle([(each.job, _buried(each)) for each in burials])

    async def _settle(self, changes: Sequence[tuple[Job, Decision]]) -> list[bool]:
        if not changes:
            return []
        now = await self._store.fresh()
        members = self._store.registry.by_name
        steps: list[Step | None] = []
        for job, decide in changes:
            member = members.get((job.channel, job.consumer))
            if member is None or not job.id.isdigit():
                steps.append(None)
            else:
                steps.append(Step(member.ref, int(job.id), _holds(job.token), decide(member)))
        return await self._transitions.apply(steps, now)


def _holds(token: int) -> Callable[[Record, int], bool]:
    return lambda record, now: record.state is State.LEASED and record.token == token


def _done(record: Record, now: int) -> Record:
    return record.at_end(State.DONE, now)


def _retried(retry: Retry) -> Decision:
    _, delay, failure = retry

    def change(record: Record, now: int) -> Record:
        state = State.SCHEDULED if delay else State.READY
        due = record.due if delay is None else now + to_micros(delay)
        given_back = record.attempts - (failure is None)
        return record.waiting(state, due, attempts=given_back, errors=record.failed(failure, now))

    return lambda _: change


def _buried(burial: Burial) -> Decision:
    return lambda member: buried(member, burial.reason, burial.failure)


def buried(
    member: Member | None, reason: Reason, failure: Failure, *, overdue: bool = False
) -> Callable[[Record, int], Record]:
    """To the end of a job that gave up. `overdue`: its attempt ended without an answer."""
    discard = member is not None and member.policy.on_dead == "discard"

    def change(record: Record, now: int) -> Record:
        return record.at_end(
            State.DISCARDED if discard else State.DEAD,
            now,
            reason=reason.value,
            errors=record.failed(failure, now),
            attempts=record.attempts - overdue,
            abandonments=record.abandonments + overdue,
        )

    return change


def _bury_lost(record: Record, member: Member) -> Step:
    def unchanged(found: Record, now: int) -> bool:
        return found.revision == record.revision

    return Step(record.ref, record.seq, unchanged, buried(member, Reason.TERMINAL, _LOST))
