"""Dead letters: their counts and clusters, pages of them, and their ways out of dead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from heapq import nsmallest
from typing import NamedTuple

from holdfast import failpoints
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.counts import fold_counts
from holdfast.backends.nats.state.dead_index import (
    AT_ONCE,
    IndexEntry,
    Recount,
    backwards,
    index_entry,
    letters,
)
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.job_records import StoredJob, job_number, shown
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.state.transitions import Transitions
from holdfast.backends.nats.wire import codec, stream, subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale
from holdfast.backends.nats.wire.codec import Delivery, to_micros
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.deadletters import (
    Cluster,
    DeadCount,
    DeadFilter,
    DeadLetter,
    DeadPage,
    Drift,
    Fold,
)
from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.model.event import Event
from holdfast.model.states import LIVE, State
from holdfast.model.upkeep import Lock

_MOST_READ = 2000  # dead letters that one call looks at
_PAGE = 500
_MOVED_AT_ONCE = 320
_MESSAGES = 5  # that one dead letter takes at most, besides its patch
_FOLDED_AT_ONCE = 400
_IDLE = 24 * 3600 * 1_000_000  # microseconds
_Members = Mapping[str, Member]
_Plan = Callable[[BatchBuilder, Member, StoredJob, int], Awaitable[bool]]
"""Add one dead letter's change to a batch; returns False where that is full."""


@dataclass(frozen=True, order=True, slots=True)
class _ClusterSize:
    """A cluster without its sample: larger ones sort first."""

    size: int
    channel: str
    name: str
    fingerprint: str
    member: Member = field(compare=False)


class _Indexed(NamedTuple):
    """A dead letter and the sequence of its entry in the index."""

    seq: int
    letter: DeadLetter


class DeadLetters:
    """Reads counts from the mirror and everything else from the index; moves letters in batches."""

    def __init__(
        self, store: NatsStore, entries: Entries, leases: LeaseRecords, transitions: Transitions, locks: Locks
    ) -> None:
        self._store, self._entries, self._leases = store, entries, leases
        self._transitions, self._locks = transitions, locks

    async def counts(self) -> list[DeadCount]:
        await self._store.fresh()
        return [
            DeadCount(member.channel, member.name, name.removeprefix("dead:"), number)
            for member in self._store.registry.chosen(None, None)
            for name, number in sorted(self._store.mirror.counts(member.ref).items())
            if name.startswith("dead:") and number > 0
        ]

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        """A cluster that was emptied meanwhile is left out."""
        await self._store.fresh()
        sizes = (
            _ClusterSize(-number, member.channel, member.name, fingerprint, member)
            for member in self._store.registry.chosen(channel, consumer)
            for fingerprint, number in self._store.mirror.clusters(member.ref).items()
            if number > 0
        )
        groups, found = nsmallest(limit, sizes), list[Cluster]()
        for at in range(0, len(groups), AT_ONCE):
            found += await self._sampled(groups[at : at + AT_ONCE])
        return found

    async def _sampled(self, groups: Sequence[_ClusterSize]) -> list[Cluster]:
        latest = await asyncio.gather(*(self._latest(group) for group in groups))
        kept = await letters(self._store, ((each.ref, each.job) for each in latest if each is not None))
        found = []
        for group, last in zip(groups, latest, strict=True):
            record = None if last is None else kept.get((last.ref, last.job))
            if record is not None and record.fingerprint == group.fingerprint:
                sample = self._letter(group.member, record)
                found.append(Cluster(group.channel, group.name, group.fingerprint, -group.size, sample))
        return found

    async def _latest(self, group: _ClusterSize) -> IndexEntry | None:
        """Return the last one that died and did not leave."""
        subject = subjects.index(group.member.ref, fingerprint=group.fingerprint)
        last = await stream.last(self._store.connection, subject)
        if last is None or last.data:
            return None if last is None else index_entry(last)
        async for page in backwards(self._store.connection, subject, last.seq, AT_ONCE):
            for message in page:
                if message.data:
                    return index_entry(message)
        return None

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        """By consumer, reason and fingerprint from the index; what else is asked for is looked through."""
        before = _entry_after(after)
        await self._store.fresh()
        members = {
            member.ref: member for member in self._store.registry.chosen(wanted.channel, wanted.consumer)
        }
        if not members or limit < 1:
            return DeadPage([], None)
        last = int((await self._store.info())["state"]["last_seq"])
        until = last if before is None else min(before - 1, last)
        found, looked = list[_Indexed](), 0
        async for page in self._index_pages(wanted, members, until, limit + 1):
            found += await self._matching(wanted, members, page)
            looked += len(page)
            if len(found) > limit:
                return DeadPage([each.letter for each in found[:limit]], str(found[limit - 1].seq))
            if looked >= _MOST_READ:
                return DeadPage([each.letter for each in found], str(page[-1].seq))
        return DeadPage([each.letter for each in found], None)

    async def _index_pages(
        self, wanted: DeadFilter, members: _Members, until: int, needed: int
    ) -> AsyncIterator[Sequence[StoredMessage]]:
        """Yield the index from a sequence back to the time that is asked for, some entries at a time."""
        ref = min(members) if len(members) == 1 else "*"
        subject = subjects.index(ref, wanted.reason, wanted.fingerprint)
        since = 0 if wanted.since is None else to_micros(wanted.since)
        deep = wanted.kind is not None or wanted.text is not None
        batch, size = (_PAGE, AT_ONCE) if deep else (min(2 * needed, _PAGE), min(needed, AT_ONCE))
        async for messages in backwards(self._store.connection, subject, until, batch):
            for at in range(0, len(messages), size):
                page = messages[at : at + size]
                yield page
                # Whatever stands before was stored earlier, and died before it was stored.
                if self._entries.published(page[-1]) < since:
                    return

    async def _matching(
        self, wanted: DeadFilter, members: _Members, page: Sequence[StoredMessage]
    ) -> list[_Indexed]:
        """Return the dead letters of some entries that match a filter."""
        entries = [each for each in map(index_entry, page) if each is not None]
        timely = [each for each in entries if each.ref in members and _in_time(wanted, each)]
        kept = await letters(self._store, ((each.ref, each.job) for each in timely))
        found = []
        for each in timely:
            record = kept.get((each.ref, each.job))
            letter = None if record is None else self._letter(members[each.ref], record)
            if letter is not None and wanted.holds(letter):
                found.append(_Indexed(each.seq, letter))
        return found

    async def letter(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        await self._store.fresh()
        member, seq = self._store.registry.by_name.get((channel, consumer)), job_number(job_id)
        if member is None:
            return None
        record = (await letters(self._store, [(member.ref, seq)])).get((member.ref, seq))
        if record is None:
            return None
        event = await self._entries.of_job(channel, record)
        own = await self._entries.of_job(channel, replace(record, patch="")) if record.patch else None
        return replace(self._letter(member, record), event=event, original=None if own is None else own.data)

    def _letter(self, member: Member, record: StoredJob) -> DeadLetter:
        position = self._store.registry.position(record.seq)
        return DeadLetter(shown(record, member.channel, member.name, position), record.fingerprint)

    # A batch has 1,000 messages, and a dead letter takes three of them to be revived and up to five to be
    # purged, so that a thousand take several batches. Each is whole or not at all; a caller that gets
    # `Unavailable` after the first may ask again, and gets False for what had moved by then.

    async def revive(
        self, channel: str, consumer: str, job_ids: Sequence[str], data: bytes | None = None
    ) -> list[bool]:
        async def plan(batch: BatchBuilder, member: Member, record: StoredJob, now: int) -> bool:
            new = record.anew(now, member.policy.expires_after)
            patch: list[BatchMessage] = []
            if data is not None:
                new = replace(new, patch=subjects.patch(new.ref, new.seq, new.token))
                patch = await self._patched(member, new.patch, record, data)
            if not batch.has_room(len(patch) + _MESSAGES, sum(len(each.data) for each in patch)):
                return False
            batch.also(patch)
            batch.revive(record, new)
            return True

        moved = await self._move(channel, consumer, job_ids, plan)
        failpoints.hit("dead.after_revive")
        if any(moved):
            await self._store.wake({channel})
        return moved

    async def _patched(
        self, member: Member, place: str, record: StoredJob, data: bytes
    ) -> list[BatchMessage]:
        """Return the event with other data; one that is gone is made of what the record knows of it."""
        event = await self._entries.of_job(member.channel, record)
        patched = (event or Event(b"", record.event, record.source))._replace(data=data)
        most = (await self._store.connection.client()).max_payload
        return codec.encode(place, patched, Delivery(), most)

    async def purge(self, channel: str, consumer: str, job_ids: Sequence[str]) -> list[bool]:
        async def plan(batch: BatchBuilder, member: Member, record: StoredJob, now: int) -> bool:
            if batch.has_room(_MESSAGES):
                batch.purge(record, replace(record, state=State.PURGED, ended=now))
                return True
            return False

        moved = await self._move(channel, consumer, job_ids, plan)
        failpoints.hit("dead.after_purge")
        return moved

    async def _move(self, channel: str, consumer: str, job_ids: Sequence[str], plan: _Plan) -> list[bool]:
        todo = list(dict.fromkeys(number for each in job_ids if (number := job_number(each))))
        moved, stale = set[int](), 0
        while todo:
            now = await self._store.fresh()
            member = self._store.registry.by_name.get((channel, consumer))
            if member is None:
                break
            try:
                async with self._store.lock(member.ref):
                    taken, todo = await self._step(member, todo, plan, now)
            except Stale:
                stale += 1
                if stale > TRIES:
                    raise Unavailable(
                        f"the dead letters of {consumer!r} change too often; try again"
                    ) from None
                await self._store.look_again(stale, member.ref)
                continue
            moved |= taken
            failpoints.hit("dead.mid_move")
        return [job_number(each) in moved for each in job_ids]

    async def _step(
        self, member: Member, todo: list[int], plan: _Plan, now: int
    ) -> tuple[set[int], list[int]]:
        """Move some in one batch. Returns which ones moved, and which were not looked at yet."""
        order = self._store.mirror.revision(subjects.key_order(member.ref))
        asked, taken = todo[:_MOVED_AT_ONCE], set[int]()
        found = await letters(self._store, ((member.ref, seq) for seq in asked))
        batch = BatchBuilder(self._store, self._leases, member.ref)
        for place, seq in enumerate(asked):
            record = found.get((member.ref, seq))
            if record is None:
                continue
            if not await plan(batch, member, record, now):
                asked = asked[:place]
                break
            taken.add(seq)
        if taken:
            if member.policy.ordered:
                batch.raise_key_order(order)
            await batch.commit()
        return taken, todo[len(asked) :]

    # counts

    async def recount(self, repair: bool, lock: Lock) -> list[Drift]:
        await self.fold(timedelta(0), 0, lock)  # only what is in the index is counted
        found: list[Drift] = []
        for member in self._store.registry.chosen(None, None):
            found += await self._recounted(member, repair, lock)
        return found

    async def _recounted(self, member: Member, repair: bool, lock: Lock) -> list[Drift]:
        """Exact: the counts did not move while the last of the dead were read, so both are of one moment."""
        recount = Recount(self._store.connection, member.ref)
        await recount.read_on()  # the long part, while everybody else goes on
        for turn in range(1, TRIES):
            async with self._store.lock(member.ref):
                await self._store.look_again(turn, member.ref)
                counted = self._store.mirror.count_revisions(member.ref)
                await recount.read_on()
                # A batch of which the recount saw the first half is whole once this one is in.
                if not await self._committed([await self._locks.fence(lock)]):
                    continue
                await self._store.mirror.sync_registry()
                await self._store.mirror.sync(member.ref)
                if member.ref not in self._store.registry.members:
                    return []
                if counted == self._store.mirror.count_revisions(member.ref):
                    drift = self._drift(member, recount)
                    if not repair or await self._repaired(member, recount, lock):
                        return drift
        raise Unavailable(f"the dead letters of {member.name!r} change too often to count them; try again")

    def _drift(self, member: Member, recount: Recount) -> list[Drift]:
        counted, found = self._reasons(member), recount.reasons()
        return [
            Drift(member.channel, member.name, reason, counted[reason], found[reason])
            for reason in sorted(counted.keys() | found.keys())
            if counted[reason] != found[reason]
        ]

    def _reasons(self, member: Member) -> Counter[str]:
        counts = self._store.mirror.counts(member.ref).items()
        return Counter({name[5:]: number for name, number in counts if name.startswith("dead:")})

    async def _repaired(self, member: Member, recount: Recount, lock: Lock) -> bool:
        """Move the counts by what they are wrong. That stays as it is, whatever others move meanwhile."""
        mirror, reasons = self._store.mirror, recount.reasons()
        counts = {f"dead:{reason}": by for reason, by in _missing(reasons, self._reasons(member)).items()}
        counts[State.DEAD] = reasons.total() - mirror.counts(member.ref)[State.DEAD]
        counts |= _missing(mirror.queues.states(member.ref), _live(mirror.counts(member.ref)))
        batch = BatchBuilder(self._store, self._leases, member.ref)
        batch.correct(counts, _missing(recount.clusters(), mirror.clusters(member.ref)))
        batch.also([await self._locks.fence(lock)])
        try:
            await batch.commit()
        except Stale:
            return False
        return True

    async def _committed(self, messages: Sequence[BatchMessage]) -> bool:
        try:
            await self._store.commit(messages)
        except Stale:
            return False
        return True

    async def fold(self, fresh: timedelta, most: int, lock: Lock | None) -> Fold:
        """The deltas are counts of processes that were killed."""
        now = await self._store.fresh()
        if lock is None:
            idle = self._store.mirror.count_subjects_before(await self._entries.first_at(now - _IDLE))
            return Fold(sum(min(len(each), _FOLDED_AT_ONCE) for each in idle.values()))
        await self._locks.fence(lock)
        return Fold(await self._fold_idle(now, lock))

    async def _fold_idle(self, now: int, lock: Lock) -> int:
        """Fold the counts of processes that wrote none for a day: most likely they are gone."""
        mirror, count, before = self._store.mirror, 0, await self._entries.first_at(now - _IDLE)
        for ref in mirror.count_subjects_before(before):
            async with self._store.lock(ref):
                idle = mirror.count_subjects_before(before).get(ref, [])[:_FOLDED_AT_ONCE]
                if idle and await self._committed(
                    [*fold_counts(mirror, idle), await self._locks.fence(lock)]
                ):
                    count += len(idle)
        return count


def _in_time(wanted: DeadFilter, letter: IndexEntry) -> bool:
    return (wanted.since is None or letter.died >= to_micros(wanted.since)) and (
        wanted.until is None or letter.died < to_micros(wanted.until)
    )


def _entry_after(after: str | None) -> int | None:
    """Return the entry behind which a page goes on."""
    if after is None:
        return None
    place = job_number(after)
    if not place:
        raise InvalidInput(f"{after[:40]!r} is no place in the list of dead letters; take a page's `after`")
    return place


def _live(counts: Mapping[str, int]) -> dict[str, int]:
    return {each: counts.get(each, 0) for each in LIVE}


def _missing(found: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, int]:
    """Return what is to be added to each count."""
    return {name: found.get(name, 0) - counted.get(name, 0) for name in found.keys() | counted.keys()}
