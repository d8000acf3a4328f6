"""What removes old data: events that nobody needs, idempotency keys, dead letters.

A purge cannot be part of a batch. So a trim first writes down how far it goes, in one batch with the fence of
the sweeper's lock and under the revision that its decision rests on; then it purges what stands before. A
step that died in between is finished by the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

from holdfast import failpoints
from holdfast.backends.nats.cursors import Cursors
from holdfast.backends.nats.groups import Groups
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.state import job_records, lease_records
from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.lease_records import LeaseRecords, lease_subject
from holdfast.backends.nats.state.publish_outcome import PublishOutcomes
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore, TrimMark
from holdfast.backends.nats.state.take_up import TakeUp
from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import Stale, state
from holdfast.backends.nats.wire.codec import data_size, format_stamp, parse_stamp, to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.decide import Ref
from holdfast.model.errors import Unavailable
from holdfast.model.states import State
from holdfast.model.upkeep import Forgotten, Hold, Lock, Size, Trim

_EVERYTHING, _END = 0, 1 << 62
_KEPT_FOR_SURE = 3600 * 1_000_000  # microseconds
_SAMPLES, _SAMPLE, _SAMPLE_BYTES = 8, 32, 1_000_000
_WALK_PAGE, _DELETES_AT_ONCE = 1000, 200
_MOST_PURGED = 190  # each takes up to five messages of a batch


class _Need(NamedTuple):
    """A consumer that needs what stands behind `after`."""

    after: int
    consumer: str


class _Step(NamedTuple):
    """How far a trim goes, and could go; how many events it removes, and whether the limit cut it short."""

    seq: int
    free: int
    removed: int
    more: bool


class _Forgotten(NamedTuple):
    """Every idempotency key up to `seq` is removed."""

    seq: int
    revision: int


class Retention:
    """Removes in bounded steps, each under the sweeper's lock."""

    def __init__(
        self,
        store: NatsStore,
        entries: Entries,
        outcomes: PublishOutcomes,
        cursors: Cursors,
        groups: Groups,
        locks: Locks,
        leases: LeaseRecords,
        take_up: TakeUp,
    ) -> None:
        self._take_up = take_up
        self._store, self._entries, self._outcomes, self._leases = store, entries, outcomes, leases
        self._cursors, self._groups, self._locks = cursors, groups, locks

    # events

    async def trim(
        self,
        channel: str,
        before: datetime,
        limit: int,
        lock: Lock | None,
        *,
        ignore: Sequence[str] = (),
        groups: Sequence[str] = (),
        ended: Sequence[Ref] = (),
    ) -> Trim:
        """Whoever begins to need the log meanwhile makes the step start over."""
        if lock is None:
            mark = await self._store.trim_mark(channel)
            step, hold = await self._decide(mark, before, None, ignore, groups, ended)
            return Trim(step.removed, more=False, hold=hold)
        for _ in range(TRIES):
            mark = await self._store.trim_mark(channel)
            fence = await self._locks.fence(lock)
            await self._finish(mark)
            step, hold = await self._decide(mark, before, limit, ignore, groups, ())
            if step.removed:
                try:
                    await self._store.commit([mark.moved(step.seq), fence])
                except Stale:
                    continue
                failpoints.hit("trim.after_record")
                await self._purge(channel, step.seq)
            return Trim(step.removed, step.more, hold)
        raise Unavailable(f"channel {channel!r} changed too often to trim it; try again")

    async def _decide(
        self,
        mark: TrimMark,
        before: datetime,
        limit: int | None,
        ignore: Sequence[str],
        groups: Sequence[str],
        ended: Sequence[Ref],
    ) -> tuple[_Step, Hold | None]:
        """Return how far a step may go, and who holds back what is behind it. Nothing is written."""
        needs = await self._needs(mark, ignore, groups, ended)
        horizon = await self._outcomes.horizon(mark.channel)
        last = min(horizon, await self._entries.first_at(to_micros(before)) - 1)
        found = await self._entries.last(mark.channel, last)
        old = 0 if found is None else found.seq
        step = await self._step(mark, min([old, *(need.after for need in needs)]), limit)
        if not needs or needs[0].after >= old:
            return step, None
        after = min(needs[0].after, step.free)  # the last event that it no longer needs, wherever it stands
        return step, Hold(needs[0].consumer, self._store.registry.position(after) if after else None)

    async def _needs(
        self, mark: TrimMark, ignore: Sequence[str], groups: Sequence[str], ended: Sequence[Ref]
    ) -> list[_Need]:
        """Return who needs something of the channel, the lowest first. Jobs in `ended` are taken as dead.

        What a consumer needs only ever shrinks, and whoever is new writes the trim mark again. So what is
        found here holds as long as the mark has not been written since it was read.
        """
        cursors = await self._cursors.all(mark.channel)
        acknowledged = await self._groups.acknowledged(mark.channel, groups)
        await self._store.fresh()
        sequence = self._store.sequence  # None: a position from an epoch that this store does not know
        found = await self._workers(mark, set(ended))
        found += [_Need(sequence(c.position) or _EVERYTHING, c.name) for c in cursors if c.name not in ignore]
        found += [_Need(acknowledged.get(name, _EVERYTHING), name) for name in groups]
        return sorted(found)

    async def _workers(self, mark: TrimMark, ended: Set[Ref]) -> list[_Need]:
        """Before its frontier a worker consumer needs what has not ended, behind it everything.

        A live job whose event was trimmed has been a dead letter, and has a copy. What leaves a lease while
        this looks is found among the jobs: these are read after the records of leases.
        """
        mirror, members = self._store.mirror, self._store.registry.by_channel.get(mark.channel, ())
        frontiers = {each.ref: mirror.frontiers[each.ref] for each in members if each.ref in mirror.frontiers}
        passed = {ref: each.at for ref, each in frontiers.items()}
        for member in members:
            with suppress(Stale):  # one that is being removed
                passed[member.ref] = await self._take_up.passed(member)
        for ref, each in frontiers.items():
            if mirror.frontiers.get(ref) is not each:  # what it has passed meanwhile may be in a new lease
                passed[ref] = each.at
        await self._leases.read((ref, lease) for ref, each in frontiers.items() for lease in each.leases)
        open_ones = {
            ref: [seq for lease in each.leases for seq in self._leases.known(ref, lease).open(lease)]
            for ref, each in frontiers.items()
        }
        await mirror.sync()
        for ref, seq in mirror.queues.jobs:
            if ref in open_ones:
                open_ones[ref].append(seq)
        found = []
        for member in members:
            if member.ref not in frontiers:
                continue
            needed = (
                seq for seq in open_ones[member.ref] if seq > mark.seq and (member.ref, seq) not in ended
            )
            after, at = min(needed, default=None), passed[member.ref]
            found.append(_Need(at if after is None else min(after - 1, at), member.name))
        return found

    async def _step(self, mark: TrimMark, free: int, limit: int | None) -> _Step:
        """Return how far a step goes, at most to `free`; without a limit, all of them together."""
        found = await self._entries.last(mark.channel, free)
        last = mark.seq if found is None else max(found.seq, mark.seq)
        if last == mark.seq or (limit is not None and limit < 1):
            return _Step(mark.seq, last, 0, last > mark.seq)
        old = await self._entries.range_of(mark.channel, mark.seq, last)
        if limit is None:
            return _Step(last, last, old.count, more=False)
        end = await old.find(min(old.count, limit))
        return _Step(end.seq, last, end.number, old.count > limit)

    async def _finish(self, mark: TrimMark) -> None:
        """Remove what a step that died has left before the trim mark."""
        for subject in (mark.channel, subjects.parts(mark.channel)):
            first, _ = await self._entries.first(subject, 0)
            if first is not None and first.seq <= mark.seq:
                await self._purge(mark.channel, mark.seq)

    async def _purge(self, channel: str, seq: int) -> None:
        """Events, then their parts, then what was only there for their sake."""
        connection, forgotten = self._store.connection, await self._forgotten()
        await stream.purge(connection, channel, seq)
        failpoints.hit("trim.mid_purge")
        await stream.purge(connection, subjects.parts(channel), seq)
        await stream.purge(connection, subjects.special(channel), seq + 1)  # each right behind its event
        await stream.purge(connection, subjects.aborted("*", channel), seq)
        # The keys of a publish of several batches need its outcome as well.
        await stream.purge(connection, subjects.outcome("*", channel), min(seq, forgotten.seq))

    async def size(self, channel: str) -> Size:
        """From a sample of the log."""
        await self._store.look()
        mark = await self._store.trim_mark(channel)
        first, count = await self._entries.first(channel, mark.seq)
        if first is None:
            return Size(0, 0)
        newest = await self._store.connection.last([channel])
        step = (newest[0].seq - first.seq) // _SAMPLES + 1
        query = {"next_by_subj": channel, "batch": _SAMPLE, "max_bytes": _SAMPLE_BYTES}
        places = range(first.seq, newest[0].seq + 1, step)
        looks = await asyncio.gather(*(self._store.connection.read({"seq": at, **query}) for at in places))
        sizes = [data_size(message) for found, _ in looks for message in found]
        return Size(count, count * sum(sizes) // max(len(sizes), 1))

    async def set_full(self, channel: str, full: bool) -> None:
        await self._store.look()
        self._store.registry.check_channel(channel)
        await self._store.change_registry(lambda known: known.with_full(channel, full))

    # idempotency keys, and records of leases

    async def forget(self, keys: datetime, jobs: datetime, limit: int, lock: Lock | None) -> Forgotten:
        """Walk over at most `limit` messages of the stream, and remove the keys among them; and as many
        records of leases. What ended outside of a lease expires by itself.

        Keys stand among everything else, and to ask for them alone would cost the server a look at every key
        there is. How far the walk came is written down, so that each message is passed once.
        """
        await self._store.fresh()
        end, removed = await self._entries.first_at(to_micros(keys)) - 1, 0
        if lock is None:
            ended, _ = await self._forget_leases(jobs, limit, dry=True)
            return Forgotten(await self._count_keys((await self._forgotten()).seq, end), ended, more=False)
        fence = await self._locks.fence(lock)
        ended, more = await self._forget_leases(jobs, limit, dry=False)
        for _ in range(TRIES):
            mark = await self._forgotten()
            passed = await self._walk(mark.seq, end, limit)
            if not passed:
                return Forgotten(removed, ended, more)
            found = [each for each in passed if each.subject.startswith((subjects.KEYS, subjects.OUTCOMES))]
            await self._remove_keys(found)
            removed += sum(each.subject.startswith(subjects.KEYS) for each in found)
            try:
                reached = b"%d" % passed[-1].seq
                await self._store.commit([state(subjects.FORGOTTEN, reached, mark.revision), fence])
            except Stale:
                fence = await self._locks.fence(lock)
                continue
            return Forgotten(removed, ended, more or len(passed) == limit)
        raise Unavailable("others forget keys at the same time; try again")

    async def _forget_leases(self, before: datetime, limit: int, *, dry: bool) -> tuple[int, bool]:
        """Remove records of leases that ended before a time; returns how many jobs, and whether more follow.

        A lease that is listed keeps its record: without it, it would be as its claim made it. For an hour by
        the server's own clock every record stays, so that whoever knows an old list finds it.
        """
        recent = parse_stamp((await self._store.info())["ts"]) - _KEPT_FOR_SURE
        query = {"start_time": format_stamp(recent), "next_by_subj": ">", "batch": 1}
        found, _ = await self._store.connection.read(query)
        end = min(await self._entries.first_at(to_micros(before)), found[0].seq if found else _END) - 1
        await self._store.fresh()  # whoever is not known lists nothing
        listed = {
            lease_subject(ref, lease)
            for ref, frontier in self._store.mirror.frontiers.items()
            for lease in frontier.leases
        }
        after, jobs, looked, pending = 0, 0, 0, 1
        while pending and looked < limit and after < end:
            query = {
                "seq": after + 1,
                "next_by_subj": f"{subjects.LEASES}>",
                "batch": min(limit - looked, _WALK_PAGE),
            }
            found, pending = await self._store.connection.read(query)
            after, looked = found[-1].seq if found else end, looked + len(found)
            old = [each for each in found if each.seq <= end and each.subject not in listed]
            jobs += sum(len(lease_records.decode(each.data, each.seq)[1].ends) for each in old)
            if not dry:
                await self._delete([each.seq for each in old])
        return jobs, bool(pending) and after < end

    async def _forgotten(self) -> _Forgotten:
        found = await self._store.newest(subjects.FORGOTTEN)
        return _Forgotten(0, 0) if found is None else _Forgotten(int(found.data), found.seq)

    async def _count_keys(self, after: int, end: int) -> int:
        found = 0
        while passed := await self._walk(after, end, _WALK_PAGE):
            found += sum(each.subject.startswith(subjects.KEYS) for each in passed)
            after = passed[-1].seq
        return found

    async def _walk(self, after: int, end: int, limit: int) -> list[StoredMessage]:
        """Return the next messages that are old enough, whatever they are."""
        passed: list[StoredMessage] = []
        while len(passed) < limit:
            query = {"seq": after + 1, "next_by_subj": ">", "batch": min(limit - len(passed), _WALK_PAGE)}
            messages, pending = await self._store.connection.read(query)
            passed += [each for each in messages if each.seq <= end]
            if not messages or not pending or messages[-1].seq > end:
                break
            after = messages[-1].seq
        return passed

    async def _remove_keys(self, found: Sequence[StoredMessage]) -> None:
        """Remove keys, and outcomes of publishes whose events are gone as well; a trim removes the others."""
        outcomes = [each for each in found if each.subject.startswith(subjects.OUTCOMES)]
        channels = {each.subject.split(".", 3)[3] for each in outcomes}
        trimmed = {channel: (await self._store.trim_mark(channel)).seq for channel in channels}
        chosen = [
            each.seq
            for each in found
            if each not in outcomes or each.seq <= trimmed[each.subject.split(".", 3)[3]]
        ]
        await self._delete(chosen)

    async def _delete(self, seqs: Sequence[int]) -> None:
        for at in range(0, len(seqs), _DELETES_AT_ONCE):
            step = seqs[at : at + _DELETES_AT_ONCE]
            await asyncio.gather(*(stream.delete(self._store.connection, seq) for seq in step))

    # dead letters

    async def purge_dead(self, channel: str, before: datetime, limit: int, lock: Lock) -> dict[str, int]:
        now = await self._store.fresh()
        await self._locks.fence(lock)
        purged: dict[str, int] = {}
        for member in self._store.registry.by_channel.get(channel, ()):
            left = limit - sum(purged.values())
            count = await self._purge_dead(member, to_micros(before), left, lock, now)
            if count:
                purged[member.name] = count
        return purged

    async def _purge_dead(self, member: Member, before: int, limit: int, lock: Lock, now: int) -> int:
        count, stale = 0, 0
        async with self._store.lock(member.ref):
            while count < limit:
                dead = await self._oldest_dead(member, before, min(limit - count, _MOST_PURGED))
                if not dead:
                    break
                batch = BatchBuilder(self._store, self._leases, member.ref)
                for record in dead:
                    batch.purge(record, replace(record, state=State.PURGED, ended=now))
                batch.also([await self._locks.fence(lock)])
                try:
                    await batch.commit()
                    count += len(dead)
                except Stale:
                    stale += 1
                    if stale > TRIES:
                        raise Unavailable(f"the dead letters of {member.name!r} change too often") from None
                    await self._store.look_again(stale, member.ref)
        return count

    async def _oldest_dead(self, member: Member, before: int, limit: int) -> list[StoredJob]:
        """They stand in the stream in the order in which they died."""
        found: list[StoredJob] = []
        after, pending = 0, 1
        while pending and len(found) < limit:
            query = {"seq": after + 1, "next_by_subj": subjects.dead(member.ref, "*"), "batch": limit}
            messages, pending = await self._store.connection.read(query)
            for message in messages:
                record = job_records.decode(message.data, message.seq) if message.data else None
                if record is not None and (record.ended or 0) >= before:
                    return found
                found += [record] if record is not None else []
                after = message.seq
        return found[:limit]
