"""Jobs: leased and ended by workers, changed and looked at by operators.

Most jobs are never stored: a claim takes a range of the log, and its completion is one message about all of
it. What differs goes through transitions, job by job.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.claims import Claims
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Lease
from holdfast.backends.nats.state.job_records import StoredJob, job_number, shown
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.overdue import Overdue
from holdfast.backends.nats.state.publish_outcome import IdempotencyKeys
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.state.take_up import TakeUp
from holdfast.backends.nats.state.transitions import Transitions, TransitionStep, buried
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.batches import Stale
from holdfast.backends.nats.wire.codec import to_micros
from holdfast.contracts import WAITING_ONLY
from holdfast.model.decide import DueKind
from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.model.job import Burial, Cancellation, Completion, Job, JobRecord, Retry, Transaction
from holdfast.model.states import LIVE, State

_Decision = Callable[[Member], Callable[[StoredJob, int], StoredJob]]
_LOOKED_THROUGH, _LOOK = 10, 1000
"""Pages of the log in which an event without a key is looked for, and entries in each."""
_WAITING = (State.READY, State.SCHEDULED)


class Leases:
    """Changes of jobs: of leased ones under their tokens, of single ones as an operator asks."""

    def __init__(
        self,
        store: NatsStore,
        entries: Entries,
        keys: IdempotencyKeys,
        take_up: TakeUp,
        records: LeaseRecords,
        jobs: Jobs,
        transitions: Transitions,
        overdue: Overdue,
        claims: Claims,
    ) -> None:
        self._store, self._entries, self._keys = store, entries, keys
        self._take_up, self._records, self._jobs = take_up, records, jobs
        self._transitions, self._overdue, self._claims = transitions, overdue, claims

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        return await self._claims.claim(channel, consumer, limit, worker)

    # the ends of leases

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        return await self._change(jobs, self._records.end, 0, lambda _: _done)

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        more = to_micros(by)

        def extended(record: StoredJob, now: int) -> StoredJob:
            return replace(record, lease=now + more)

        return await self._change(jobs, self._records.extend, more, lambda _: extended)

    async def _change(
        self,
        jobs: Sequence[Job],
        change: Callable[[str, Lease, Sequence[int], int], Awaitable[set[int]]],
        more: int,
        decide: _Decision,
    ) -> list[bool]:
        """Change members of leases by one message for each lease, and other jobs one by one."""
        if not jobs:
            return []
        now = await self._store.clock()
        by_lease: defaultdict[tuple[str, int], dict[int, int]] = defaultdict(dict)
        others, members = list[int](), self._store.registry.by_name
        refs = {
            member.ref for job in jobs if (member := members.get((job.channel, job.consumer))) is not None
        }
        await asyncio.gather(*(self._store.mirror.sync(ref) for ref in refs if not self._is_known(ref, jobs)))
        leases, frontiers = dict[tuple[str, int], Lease](), self._store.mirror.frontiers
        for place, job in enumerate(jobs):
            member, seq = members.get((job.channel, job.consumer)), job_number(job.id)
            if member is None or not seq:
                continue
            key = member.ref, job.token
            if key not in leases and (frontier := frontiers.get(member.ref)) is not None:
                found = frontier.lease(job.token)
                if found is not None:
                    leases[key] = found
            if key in leases and leases[key].has(seq) and seq not in by_lease[key]:
                by_lease[key][seq] = place
            else:
                others.append(place)
        accepted = set[int]()

        async def at_once(key: tuple[str, int], places: dict[int, int]) -> None:
            done = await change(key[0], leases[key], list(places), now + more)
            accepted.update(places[seq] for seq in done)
            if len(done) < len(places):
                # A deadline that comes closer is one of a job of its own, which still has the lease's token.
                record = self._records.known(key[0], leases[key])
                left = [seq for seq in places if seq not in done and seq not in record.ends]
                await one_by_one([places[seq] for seq in left])

        async def one_by_one(places: list[int]) -> None:
            done = await self._apply([(jobs[place], decide) for place in places])
            accepted.update(place for place, taken in zip(places, done, strict=True) if taken)

        await asyncio.gather(one_by_one(others), *(at_once(*each) for each in by_lease.items() if each[1]))
        return [place in accepted for place in range(len(jobs))]

    def _is_known(self, ref: str, jobs: Sequence[Job]) -> bool:
        """Return whether the leases of some jobs are listed, as of lately: long after it has ended, the
        record of a lease is forgotten, and only the list tells that it is held no more."""
        frontier = self._store.mirror.frontiers.get(ref)
        if frontier is None or not self._store.mirror.is_recent(ref):
            return False
        tokens = {lease.token for lease in frontier.leases}
        return all(job.token in tokens for job in jobs)

    async def complete_within(self, job: Job, connection: Any) -> None:
        raise _no_transaction(job)

    def transaction(self, job: Job, completed: Callable[[], None]) -> Transaction:
        raise _no_transaction(job)

    async def completions(self, jobs: Sequence[Job]) -> list[Completion]:
        return [Completion.NONE] * len(jobs)

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        return await self._apply([(each.job, _retried(each)) for each in retries])

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        return await self._apply([(each.job, _buried(each)) for each in burials])

    async def _apply(self, changes: Sequence[tuple[Job, _Decision]]) -> list[bool]:
        if not changes:
            return []
        now = await self._store.clock()
        members = self._store.registry.by_name
        steps: list[TransitionStep | None] = []
        for job, decide in changes:
            member, seq = members.get((job.channel, job.consumer)), job_number(job.id)
            if member is None or not seq:
                steps.append(None)
            else:
                steps.append(TransitionStep(member.ref, seq, _holds(job.token), decide(member)))
        await self._sync(step.ref for step in steps if step is not None)
        return await self._transitions.apply(steps, now)

    async def _sync(self, refs: Iterable[str]) -> None:
        await asyncio.gather(*(self._store.mirror.sync(ref) for ref in set(refs)))

    # operators

    async def cancel(
        self,
        channel: str,
        source: str,
        event_id: str,
        consumer: str | None,
        how: Cancellation = WAITING_ONLY,
    ) -> int:
        now = await self._store.fresh()
        seq = await self._seq(channel, source, event_id)
        if seq is None:
            return 0
        members = self._store.registry.by_channel.get(channel, ())
        chosen = [member for member in members if consumer in (None, member.name)]

        states, was = LIVE if how.running else _WAITING, dict[str, State]()

        def accepts(record: StoredJob, now: int) -> bool:
            was[record.ref] = record.state
            return record.state in states and (record.source, record.event) == (source, event_id)

        def cancelled(record: StoredJob, now: int) -> StoredJob:
            return record.at_end(State.CANCELLED, now, cancelled_by=how.by, reason=how.reason)

        steps = [TransitionStep(member.ref, seq, accepts, cancelled) for member in chosen]
        accepted = await self._transitions.apply(steps, now)
        ended = [member for member, yes in zip(chosen, accepted, strict=True) if yes]
        running = [member.name for member in ended if was[member.ref] is State.LEASED]
        await self._store.tell_cancelled(channel, running, seq)
        return len(ended)

    async def cancel_waiting(self, channel: str, consumer: str, limit: int) -> int:
        return await self._claims.cancel(channel, consumer, limit)

    async def _seq(self, channel: str, source: str, event_id: str) -> int | None:
        """Return an event's sequence."""
        try:
            key = subjects.key(channel, source, event_id)
        except UnicodeEncodeError:
            raise InvalidInput(f"{event_id!r} of {source!r} is no text that a store could hold") from None
        known = (await self._keys.find(channel, [key])).get(key)
        if known is not None:
            return known.place
        # Its key may be forgotten; a dead letter is found all the same.
        copies = await self._store.connection.last([subjects.copy(channel, source, event_id)])
        kept = [each for each in copies if subjects.CE_ID in each.headers]
        return subjects.copied(kept[-1].subject) if kept else await self._foreign(channel, source, event_id)

    async def _foreign(self, channel: str, source: str, event_id: str) -> int | None:
        """Look for another client's event that waits: it has no key before some consumer takes it up."""
        refs = (member.ref for member in self._store.registry.by_channel.get(channel, ()))
        frontiers = [self._store.mirror.frontiers[ref] for ref in refs if ref in self._store.mirror.frontiers]
        after = min((frontier.at for frontier in frontiers), default=None)
        for _ in range(_LOOKED_THROUGH):
            if after is None:
                break
            found, reached = await self._entries.page(channel, after, _LOOK)
            for each in found:
                if subjects.BATCH not in each.headers and (codec.source(each), codec.event_id(each)) == (
                    source,
                    event_id,
                ):
                    return each.seq
            after = reached if found else None
        return None

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        seq, races, missed = job_number(job_id), 0, False
        while races < TRIES:
            now = await self._store.clock()
            member = self._store.registry.by_name.get((channel, consumer))
            if member is None:
                return False
            await self._store.mirror.sync(member.ref)
            try:
                async with self._store.lock(member.ref):
                    if await self._took_up_before(member, seq, now):
                        continue
                    lease = self._store.mirror.frontier(member.ref).holder(seq)
                    if lease is None:
                        requeued = await self._requeue(member, seq, now)
                    else:
                        async with self._records.lock(member.ref, lease.token):
                            requeued = await self._requeue(member, seq, now)
            except Stale:
                races += 1
                await self._store.look_again(races, member.ref)
                known = self._store.mirror.frontiers.get(member.ref)
                lease = None if known is None else known.holder(seq)
                await self._records.read([] if lease is None else [(member.ref, lease)])
                continue
            if requeued:
                await self._store.wake({channel})
            elif not missed:  # it may have come back from the dead after it was looked for among the living
                missed = True
                continue
            return requeued
        raise Unavailable(f"job {job_id} changes too often to requeue it; try again")

    async def _took_up_before(self, member: Member, seq: int, now: int) -> bool:
        """Make jobs of what stands before an event that waits for an ordered consumer, a page at a time: no
        later event of its key may come before it. Returns whether there may be more."""
        if not member.policy.ordered or seq <= self._store.mirror.frontier(member.ref).at:
            return False
        return seq in await self._entries.at(member.channel, [seq]) and await self._take_up.every(member, now)

    async def _requeue(self, member: Member, seq: int, now: int) -> bool:
        batch = BatchBuilder(self._store, self._records, member.ref)
        order = self._store.mirror.revision(subjects.key_order(member.ref))
        live = (await self._jobs.live(member, [seq])).get(seq)
        old = live or (await self._jobs.ended([member], seq)).get(member.ref)
        if old is None or (live is None and old.state is not State.DEAD):
            return False
        new = old.anew(now, member.policy.expires_after)
        if live is None:
            batch.revive(old, new)
        else:
            batch.replace(old, new)
        if member.policy.ordered:
            batch.raise_key_order(order)
        await batch.commit()
        return True

    async def stuck(self, limit: int) -> list[JobRecord]:
        now = await self._store.fresh()
        leases = self._store.mirror.queues.due[DueKind.LEASE]
        single = leases.peek(limit, lambda record: record.state is State.LEASED, now)
        found = [*single, *await self._overdue.jobs(limit, now)]
        found.sort(key=lambda record: (record.lease or 0, record.seq))
        members = self._store.registry.members
        held = [record for record in found if record.ref in members]
        return [self._shown(members[record.ref], record) for record in held[:limit]]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        await self._store.fresh()
        seq = await self._seq(channel, source, event_id)
        if seq is None:
            return []
        members = self._store.registry.by_channel.get(channel, [])
        found = await self._found(members, seq)
        asked = (source, event_id)  # in the place of one that was never stored another may stand
        mine = {
            ref: replace(record, source=source, event=event_id)
            for ref, record in found.items()
            if (record.source, record.event) in (asked, ("", ""))
        }
        return [self._shown(member, mine[member.ref]) for member in members if member.ref in mine]

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        await self._store.clock()
        member, seq = self._store.registry.by_name.get((channel, consumer)), job_number(job_id)
        if member is None:
            return None
        await self._store.mirror.sync(member.ref)
        found = (await self._found([member], seq)).get(member.ref)
        return None if found is None else self._shown(member, found)

    async def _found(self, members: Sequence[Member], seq: int) -> dict[str, StoredJob]:
        """Return a job for each of some consumers, live or terminal."""
        found = await self._looked_for(members, seq)
        missing = [member for member in members if member.ref not in found]
        if missing:  # it may have come back from where this looked last to where it looked first
            await self._sync(member.ref for member in missing)
            found |= await self._looked_for(missing, seq)
        return found

    async def _looked_for(self, members: Sequence[Member], seq: int) -> dict[str, StoredJob]:
        """Return the same as the mirror has it. Members of leases are looked at anew."""
        frontiers, found = self._store.mirror.frontiers, dict[str, StoredJob]()
        there = [member for member in members if member.ref in frontiers]
        holders = ((member.ref, frontiers[member.ref].holder(seq)) for member in there)
        await self._records.read((ref, lease) for ref, lease in holders if lease is not None)
        for member in there:
            with suppress(Stale):  # it is gone, or the mirror has begun anew
                live = await self._jobs.live(member, [seq])
                if live:
                    found[member.ref] = live[seq]
        if len(found) < len(members):
            found |= await self._jobs.ended([each for each in members if each.ref not in found], seq)
        return found

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


def _no_transaction(job: Job) -> InvalidInput:
    return InvalidInput(
        f"NATS has no transaction that could complete job {job.id}; end it with finalize(job, success=True) "
        "and make the handler idempotent"
    )
