"""Claims: what a worker gets next, or an operator cancels: jobs of their own, and what follows in the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Frontier, Lease
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.lease_records import LeaseRecord, LeaseRecords
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.state.take_up import Taken, TakeUp, Unread
from holdfast.backends.nats.state.transitions import Transitions, TransitionStep, buried
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import Stale
from holdfast.backends.nats.wire.codec import from_micros, to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.decide import describe
from holdfast.model.errors import Overloaded, Unavailable
from holdfast.model.event import Event
from holdfast.model.job import Job, Reason
from holdfast.model.states import State

log = logging.getLogger(__name__)

_MOST, _MOST_RIVALS = 900, 8
_CANCELLED = 400
"""Jobs that one batch cancels: the end of most of them takes two messages."""
_SHARE = 0.1
"""Of the wait after a lost race: a claim goes before operators, who work on jobs that nobody waits for."""
_TIDY = 16
"""Leases of one consumer from which on a claim looks which of them others have ended."""
_LOST = describe("its event was removed from the log by another client")


class Claims:
    """Moves frontiers, under a lease or for good."""

    def __init__(
        self,
        store: NatsStore,
        entries: Entries,
        take_up: TakeUp,
        records: LeaseRecords,
        transitions: Transitions,
    ) -> None:
        self._store, self._entries, self._take_up = store, entries, take_up
        self._records, self._transitions = records, transitions
        self._rivals: Counter[str] = Counter()
        """By consumer: how many others seem to claim at the same time. It rises with every lost race."""
        self._tidy: defaultdict[str, int] = defaultdict(lambda: _TIDY)

    async def claim(self, channel: str, consumer: str, limit: int, worker: str) -> list[Job]:
        """Lease a batch. Whoever loses a race for it looks again, and takes what it has read of the log."""
        limit, races, look = min(limit, _MOST), 0, True
        while races < TRIES:
            if look:
                looked = time.monotonic()
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
                await self._store.wait_after(races - 1, _SHARE)
                known = await self._catch_up(member)
                look = known is None
                if known is not None:
                    member, now = known, now + to_micros(timedelta(seconds=time.monotonic() - looked))
                    looked = time.monotonic()
                continue
            self._rivals[member.ref] //= 1 + (races == 0)
            if lost:
                await self._bury_lost(member, lost, jobs, now)
            if full is not None and not jobs and not lost:
                raise full
            if jobs or (look and not (lost or more)):
                return jobs
            look = True
        return []

    async def _catch_up(self, member: Member) -> Member | None:
        """Learn what a lost race has changed: not as much as at first, since whatever is committed between
        that and the next try makes it lose again. Returns None where only another look can tell."""
        await self._store.recognise()
        await asyncio.gather(self._store.mirror.sync_registry(), self._store.mirror.sync(member.ref))
        known = self._store.registry.by_name.get((member.channel, member.name))
        is_same = known is not None and known.ref == member.ref and member.ref in self._store.mirror.frontiers
        return known if is_same else None

    async def _look(self, channel: str, consumer: str, limit: int) -> tuple[Member, list[StoredMessage], int]:
        """Learn of a consumer, of special events for it and of what follows its frontier as far as that is
        known, with one round trip."""
        known = self._store.registry.by_name.get((channel, consumer))

        async def marks() -> list[StoredMessage]:
            return [] if known is None else await self._take_up.marks(known)

        async def ahead() -> None:
            frontier = None if known is None else self._store.mirror.frontiers.get(known.ref)
            if known is not None and frontier is not None and limit > 0:
                with suppress(Stale):
                    await self._take_up.behind(known, frontier, limit)

        (member, now), found, _ = await asyncio.gather(
            self._store.consumer(channel, consumer), marks(), ahead()
        )
        if known is not member:
            found = await self._take_up.marks(member)
            await ahead()
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
        frontier = self._store.mirror.frontier(member.ref)
        taken = Taken(frontier, frontier)
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
        if taken.moves:
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

    async def cancel(self, channel: str, consumer: str, limit: int) -> int:
        """Cancel up to `limit` jobs that wait; returns how many, and none only where none waits."""
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

        Returns how many, and whether more may follow: what became jobs of their own is cancelled as such.
        """
        taken = await self._take_up.plain(member, limit, now)
        batch = BatchBuilder(self._store, self._records, member.ref)
        for record in taken.jobs:
            batch.create(record)
        batch.also(await self._take_up.keys(member.channel, taken.foreign))
        if taken.moves:
            frontier, seqs = taken.frontier, [each.seq for each in taken.members]
            if seqs:
                token = max(frontier.token, self._store.registry.tokens) + 1
                ended = LeaseRecord(state=State.CANCELLED).with_ended(seqs, now)
                batch.also([ended.message(member.ref, Lease.of(token, now, "", seqs))])
                batch.count({State.CANCELLED: len(seqs)})
                frontier = replace(frontier, token=token)
            batch.move(frontier)
        await batch.commit()
        return len(taken.members), taken.moves


def _bury_lost(record: StoredJob, member: Member) -> TransitionStep:
    def unchanged(found: StoredJob, now: int) -> bool:
        return found.revision == record.revision

    return TransitionStep(record.ref, record.seq, unchanged, buried(member, Reason.TERMINAL, _LOST))


def _cancelled(record: StoredJob, now: int) -> StoredJob:
    return record.at_end(State.CANCELLED, now)


def _waits(record: StoredJob, now: int) -> bool:
    return record.state is not State.LEASED
