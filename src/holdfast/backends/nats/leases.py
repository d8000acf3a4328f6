"""Jobs: leased and ended by workers, changed and looked at by operators.

Most jobs are never stored: a claim takes a range of the log, and its completion is one message about all of
it. What differs goes through transitions, job by job.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta

from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Frontier, Lease
from holdfast.backends.nats.state.job_records import StoredJob, job_number, shown
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.state.lease_records import LeaseRecord, LeaseRecords
from holdfast.backends.nats.state.overdue import Overdue
from holdfast.backends.nats.state.publish_outcome import IdempotencyKeys
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.state.take_up import Taken, TakeUp, Unread
from holdfast.backends.nats.state.transitions import Transitions, TransitionStep
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.batches import Stale
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.decide import DueKind, describe
from holdfast.model.errors import InvalidInput, Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast.model.job import Burial, Failure, Job, JobRecord, Reason, Retry
from holdfast.model.states import State

log = logging.getLogger(__name__)

_Decision = Callable[[Member], Callable[[StoredJob, int], StoredJob]]
_MOST, _MOST_RIVALS = 900, 8
_CANCELLED = 400
"""Jobs that one batch cancels: the end of most of them takes two messages."""
_LOOKED_THROUGH, _LOOK = 10, 1000
"""Pages of the log in which an event without a key is looked for, and entries in each."""
_TIDY = 16
"""Leases of one consumer from which on a claim looks which of them others have ended."""
_WAITING = (State.READY, State.SCHEDULED)
_LOST = describe("its event was removed from the log by another client")


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
    ) -> None:
        self._store, self._entries, self._keys = store, entries, keys
        self._take_up, self._records, self._jobs = take_up, records, jobs
        self._transitions, self._overdue = transitions, overdue
        self._rivals: Counter[str] = Counter()
        """By consumer: how many others seem to claim at the same time. It rises with every lost race."""
        self._tidy: defaultdict[str, int] = defaultdict(lambda: _TIDY)

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """Lease a batch. Whoever loses a race for it looks again, and takes what it has read of the log."""
        limit, races = min(limit, _MOST), 0
        while races < TRIES:
            member, marks, now = await self._look(channel, consumer, limit)
            if member.paused or limit < 1:
                return []
            try:
                async with self._store.lock(member.ref):
                    full = await self._make_jobs(member, marks, limit, now)
                    jobs, lost, more = await self._take(member, limit, worker, now, races)
            except Stale:
                self._rivals[member.ref] = min(self._rivals[member.ref] + 1, _MOST_RIVALS)
                races += 1
                await self._store.wait_after(races - 1)
                continue
            self._rivals[member.ref] //= 1 + (races == 0)
            if lost:
                await self._bury_lost(member, lost, jobs, now)
            if full is not None and not jobs and not lost:
                raise full
            if jobs or not (lost or more):
                return jobs
        return []

    async def _look(self, channel: str, consumer: str, limit: int) -> tuple[Member, list[StoredMessage], int]:
        """Learn of a consumer, of special events for it and of what follows its frontier as far as that is
        known, with one round trip."""
        known = self._store.registry.by_name.get((channel, consumer))

        async def marks() -> list[StoredMessage]:
            return [] if known is None else await self._take_up.marks(known)

        async def ahead() -> None:
            if known is not None and limit > 0 and known.ref in self._store.mirror.frontiers:
                await self._take_up.behind(known, limit)

        (member, now), found, _ = await asyncio.gather(
            self._store.consumer(channel, consumer), marks(), ahead()
        )
        if known is not member:
            found = await self._take_up.marks(member)
            await self._take_up.behind(member, max(limit, 1))
        return member, found, now

    async def _make_jobs(
        self, member: Member, marks: list[StoredMessage], limit: int, now: int
    ) -> Overloaded | None:
        """Make jobs of special events, all of them. For an ordered consumer, make jobs of as much as is asked
        for, and of another page where there are special events somewhere behind it.

        A store that is too full for more hands out those that it has.
        """
        queues, frontier = self._store.mirror.queues, self._store.mirror.frontier(member.ref)
        if frontier.is_crowded and (tidied := await self._tidied(member.ref, frontier)) is not frontier:
            await self._store.commit([tidied.message(member.ref)])
        try:
            while marks and await self._take_up.special(member, marks):
                marks = await self._take_up.marks(member)
            if marks and member.policy.ordered:
                await self._take_up.every(member, now)
            while self._needs_jobs(member) and not queues.has_ready(member.ref, limit, now):
                if not await self._take_up.every(member, now):
                    break
        except Overloaded as error:
            return error
        return None

    def _needs_jobs(self, member: Member) -> bool:
        return member.policy.ordered or self._store.mirror.frontier(member.ref).is_crowded

    async def _take(
        self, member: Member, limit: int, worker: str, now: int, races: int
    ) -> tuple[list[Job], list[StoredJob], bool]:
        """Lease under the consumer's lock, after so many lost races: away from what others are taking.

        Returns what it leased, jobs whose event is gone, and whether another look may find more.
        """
        order = self._store.mirror.revision(subjects.key_order(member.ref))
        rivals, queues = self._rivals[member.ref], self._store.mirror.queues
        taken = Taken(self._store.mirror.frontier(member.ref))
        ready = queues.take_ready(member.ref, limit, now, rivals, races)
        try:
            if (not self._needs_jobs(member) and len(ready) < limit) or self._is_urgent(member, ready):
                taken = await self._take_up.plain(member, limit, now, looked=True)
                room = limit - len(ready)
                if ready and len(taken.members) > room:
                    ready, back, room = self._merged(ready, taken.members, limit)
                    queues.give_back(back)
                    taken = await self._take_up.plain(member, room, now, looked=True)
                await self._sort_out_lost(member, taken)
            return await self._lease(member, ready, taken, worker, now, order)
        except BaseException:
            queues.give_back(ready)
            raise

    def _is_urgent(self, member: Member, ready: Sequence[StoredJob]) -> bool:
        """Return whether an event of the log may come before some of these jobs."""
        return not self._needs_jobs(member) and any(record.priority <= 0 for record in ready)

    def _merged(
        self, ready: list[StoredJob], plain: Sequence[Unread], limit: int
    ) -> tuple[list[StoredJob], list[StoredJob], int]:
        """Return which jobs come among the first ones, which do not, and how many plain events do."""
        jobs = sorted(ready, key=lambda record: record.rank)
        taken = count = 0
        while taken + count < limit and taken < len(jobs) and count < len(plain):
            message = plain[count]
            if jobs[taken].rank <= (0, self._entries.published(message.message), message.seq):
                taken += 1
            else:
                count += 1
        taken += min(len(jobs) - taken, limit - taken - count)
        return jobs[:taken], jobs[taken:], limit - taken

    async def _sort_out_lost(self, member: Member, taken: Taken) -> None:
        """What has lost some of its parts becomes a job of its own, which dies."""
        large = [each for each in taken.members if each.is_large]
        events = await self._entries.events(each.message for each in large)
        lost = [each for each, event in zip(large, events, strict=True) if event is None]
        taken.jobs += [self._take_up.record(member, each.message) for each in lost]
        taken.members = [each for each in taken.members if each not in lost]

    async def _lease(
        self,
        member: Member,
        ready: list[StoredJob],
        taken: Taken,
        worker: str,
        now: int,
        order: int,
    ) -> tuple[list[Job], list[StoredJob], bool]:
        batch, deadline = (
            BatchBuilder(self._store, self._records, member.ref),
            now + to_micros(member.policy.lease),
        )
        jobs, lost = await self._lease_jobs(member, ready, worker, deadline, batch)
        if member.policy.ordered and jobs:
            batch.expect_key_order(order)
        for record in taken.jobs:
            batch.create(record)
        batch.also(await self._take_up.keys(member.channel, taken.foreign))
        lease = None
        if taken.frontier != self._store.mirror.frontier(member.ref):
            moved = await self._tidied(member.ref, taken.frontier)
            if taken.members:
                token = max(moved.token, self._store.registry.tokens) + 1
                lease = Lease.of(token, deadline, worker, [each.seq for each in taken.members])
                moved = replace(moved, token=token, leases=(*moved.leases, lease))
            batch.move(moved)
        await batch.commit()
        if lease is not None:
            self._records.begin(member.ref, lease)
            messages = [each.message for each in taken.members]
            self._entries.keep(messages)
            events = await self._entries.events(messages)
            pairs = zip(
                messages, events, strict=True
            )  # one whose parts are gone by now runs out, and dies then
            plain = [(message, event) for message, event in pairs if event is not None]
            jobs = self._in_order(member, ready, jobs, plain, lease)
        return jobs, lost, bool(taken.jobs) or batch.has_moved

    def _in_order(
        self,
        member: Member,
        ready: list[StoredJob],
        single: list[Job],
        plain: list[tuple[StoredMessage, Event]],
        lease: Lease,
    ) -> list[Job]:
        """Return jobs of their own and members of a lease in the order of claims."""
        until, position = from_micros(lease.deadline), self._store.registry.position
        names = member.channel, member.name
        jobs = [
            Job(str(message.seq), *names, event, position(message.seq), 1, 0, lease.token, until)
            for message, event in plain
        ]
        if single:
            ranks = {record.id: record.rank for record in ready}
            for message, _ in plain:
                ranks[str(message.seq)] = 0, self._entries.published(message), message.seq
            jobs = sorted([*single, *jobs], key=lambda job: ranks[job.id])
        return jobs

    async def _lease_jobs(
        self, member: Member, ready: list[StoredJob], worker: str, deadline: int, batch: BatchBuilder
    ) -> tuple[list[Job], list[StoredJob]]:
        """Add leases of jobs of their own to a batch; returns them, and those whose event is gone."""
        if not ready:
            return [], []
        found, jobs = await self._entries.of_jobs(member.channel, ready), list[Job]()
        there = [record for record in ready if record.seq in found]
        events = await self._entries.events(found[record.seq] for record in there)
        kept = {record.seq: event for record, event in zip(there, events, strict=True) if event is not None}
        for record in ready:
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
        return jobs, [record for record in ready if record.seq not in kept]

    async def _tidied(self, ref: str, frontier: Frontier) -> Frontier:
        """Return the frontier without leases that have ended.

        Most of them this process has ended itself. Now and then it looks at the others: each time when there
        are twice as many as were left the last time.
        """
        if len(frontier.leases) >= self._tidy[ref]:
            await self._records.read((ref, each) for each in frontier.leases)
            left = sum(self._records.known(ref, each).left(each) > 0 for each in frontier.leases)
            self._tidy[ref] = max(2 * left, _TIDY)
        return self._records.tidied(ref, frontier)

    async def _bury_lost(self, member: Member, lost: list[StoredJob], jobs: list[Job], now: int) -> None:
        try:
            await self._transitions.apply([_bury_lost(record, member) for record in lost], now)
        except Exception as error:
            self._store.mirror.queues.give_back(lost)
            if not jobs:
                raise
            log.warning("%s/%s: a claim was cut short: %s", member.channel, member.name, error)

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
            member = members.get((job.channel, job.consumer))
            if member is None or not job.id.isdigit():
                steps.append(None)
            else:
                steps.append(TransitionStep(member.ref, int(job.id), _holds(job.token), decide(member)))
        await self._sync(step.ref for step in steps if step is not None)
        return await self._transitions.apply(steps, now)

    async def _sync(self, refs: Iterable[str]) -> None:
        await asyncio.gather(*(self._store.mirror.sync(ref) for ref in set(refs)))

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
            member, marks, now = await self._look(channel, consumer, 0)
            try:
                async with self._store.lock(member.ref):
                    full = await self._make_jobs(member, marks, 1, now)
            except Stale:
                await self._store.wait_after(races)
                continue
            waiting = self._store.mirror.queues.waiting(member.ref, min(limit, _CANCELLED))
            steps = [TransitionStep(member.ref, record.seq, _waits, _cancelled) for record in waiting]
            cancelled, more = sum(await self._transitions.apply(steps, now)), bool(waiting)
            if not waiting and limit > 0 and not member.policy.ordered:
                try:
                    async with self._store.lock(member.ref):
                        cancelled, more = await self._cancel_plain(member, min(limit, _MOST), now)
                except Stale:
                    await self._store.wait_after(races)
                    continue
            if cancelled or not more:
                if full is not None and not cancelled:
                    raise full
                return cancelled
        raise Unavailable(f"the jobs of {consumer!r} of {channel!r} change too often; try again")

    async def _cancel_plain(self, member: Member, limit: int, now: int) -> tuple[int, bool]:
        """Move the frontier, and keep of what it passes that it was cancelled: as of a lease that has ended.

        Returns how many, and whether some became jobs of their own, which are cancelled as such.
        """
        taken = await self._take_up.plain(member, limit, now)
        batch = BatchBuilder(self._store, self._records, member.ref)
        for record in taken.jobs:
            batch.create(record)
        batch.also(await self._take_up.keys(member.channel, taken.foreign))
        if taken.frontier != self._store.mirror.frontier(member.ref):
            frontier, seqs = taken.frontier, [each.seq for each in taken.members]
            if seqs:
                token = max(frontier.token, self._store.registry.tokens) + 1
                ended = LeaseRecord(state=State.CANCELLED).with_ended(seqs, now)
                batch.also([ended.message(member.ref, Lease.of(token, now, "", seqs))])
                batch.count({State.CANCELLED: len(seqs)})
                frontier = replace(frontier, token=token)
            batch.move(frontier)
        await batch.commit()
        return len(taken.members), bool(taken.jobs)

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
        seq = job_number(job_id)
        for turn in range(1, TRIES):
            now = await self._store.clock()
            member = self._store.registry.by_name.get((channel, consumer))
            if member is None:
                return False
            await self._store.mirror.sync(member.ref)
            try:
                async with self._store.lock(member.ref):
                    frontier = self._store.mirror.frontier(member.ref)
                    if member.policy.ordered and frontier.at < seq and await self._take_up.every(member, now):
                        continue  # no later event of its key may come before it
                    lease = frontier.holder(seq)
                    if lease is None:
                        requeued = await self._requeue(member, seq, now)
                    else:
                        async with self._records.lock(member.ref, lease.token):
                            requeued = await self._requeue(member, seq, now)
            except Stale:
                await self._store.look_again(turn, member.ref)
                await self._records.read((member.ref, each) for each in [frontier.holder(seq)] if each)
                continue
            if requeued:
                await self._store.wake({channel})
            return requeued
        raise Unavailable(f"job {job_id} changes too often to requeue it; try again")

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
        return [self._shown(self._store.registry.members[record.ref], record) for record in found[:limit]]

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
        """Return a job for each of some consumers, live or terminal. Members of leases are looked at anew."""
        frontiers, found = self._store.mirror.frontiers, dict[str, StoredJob]()
        there = [member for member in members if member.ref in frontiers]
        holders = ((member.ref, frontiers[member.ref].holder(seq)) for member in there)
        await self._records.read((ref, lease) for ref, lease in holders if lease is not None)
        for member in there:
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
