"""Dead letters to look at: their counts, their clusters, pages of them, and one of them whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from heapq import nsmallest
from typing import NamedTuple

from holdfast.backends.nats import records, stream, subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.entries import Entries
from holdfast.backends.nats.index import Entry, backwards, entry
from holdfast.backends.nats.records import Record, job_number, shown
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import Store
from holdfast.backends.nats.times import from_micros, to_micros
from holdfast.contracts import JobTimes
from holdfast.model.deadletters import Cluster, DeadCount, DeadFilter, DeadLetter, DeadPage
from holdfast.model.errors import InvalidInput

_MOST = 2000
"""Dead letters that one call looks at."""
_PAGE, _AT_ONCE = 500, 100
_Members = Mapping[str, Member]


async def letters(store: Store, places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Record]:
    """The records of some dead letters, by consumer and event, without what is not dead."""
    wanted = {subjects.dead(ref, seq): (ref, seq) for ref, seq in places}
    found = await store.link.exact(list(wanted))
    return {wanted[each.subject]: records.decode(each.data, each.seq) for each in found if each.data}


@dataclass(frozen=True, order=True, slots=True)
class _Group:
    """A cluster without its sample: larger ones sort first."""

    size: int
    channel: str
    name: str
    fingerprint: str
    member: Member = field(compare=False)


class _Placed(NamedTuple):
    """A dead letter and its place in the index."""

    seq: int
    letter: DeadLetter


class Dead:
    """Looks at dead letters. Counts come from the mirror, everything else from the index."""

    def __init__(self, store: Store, entries: Entries) -> None:
        self._store, self._entries = store, entries

    async def counts(self) -> list[DeadCount]:
        """By consumer and reason."""
        await self._store.fresh()
        return [
            DeadCount(member.channel, member.name, name.removeprefix("dead:"), number)
            for member in self._members(None, None)
            for name, number in sorted(self._store.mirror.counts(member.ref).items())
            if name.startswith("dead:") and number > 0
        ]

    async def job_times(self) -> list[JobTimes]:
        """The oldest and newest of every consumer: ready ones in memory, dead ones from the index."""
        await self._store.fresh()
        ready = self._store.mirror.queues.ready_times()
        found = []
        for member in self._members(None, None):
            counts = self._store.mirror.counts(member.ref)
            some = any(number > 0 for name, number in counts.items() if name.startswith("dead:"))
            dead = await self._death_times(member.ref) if some else None
            found.append(JobTimes(member.channel, member.name, _times(ready.get(member.ref)), _times(dead)))
        return found

    async def _death_times(self, ref: str) -> tuple[int, int] | None:
        """When the first and the last of those died that did not leave. Deaths are indexed as they happen."""
        subject, first = subjects.index(ref), 1
        while True:
            messages, pending = await self._store.link.read(
                {"seq": first, "next_by_subj": subject, "batch": _AT_ONCE}
            )
            here = [each for each in map(entry, messages) if each is not None]
            if here or not pending:
                break
            first = messages[-1].seq + 1
        last = int((await self._store.info())["state"]["last_seq"])
        async for page in backwards(self._store.link, subject, last, _AT_ONCE):
            latest = next((each for each in map(entry, page) if each is not None), None)
            if here and latest is not None:
                return here[0].died, latest.died
        return None

    def _members(self, channel: str | None, consumer: str | None) -> list[Member]:
        members = self._store.registry.members.values()
        chosen = [m for m in members if channel in (None, m.channel) and consumer in (None, m.name)]
        return sorted(chosen, key=lambda member: (member.channel, member.name))

    async def clusters(self, channel: str | None, consumer: str | None, limit: int) -> list[Cluster]:
        """By consumer and fingerprint, the largest first. One that was emptied meanwhile is left out."""
        await self._store.fresh()
        sizes = (
            _Group(-number, member.channel, member.name, fingerprint, member)
            for member in self._members(channel, consumer)
            for fingerprint, number in self._store.mirror.clusters(member.ref).items()
            if number > 0
        )
        groups, found = nsmallest(limit, sizes), list[Cluster]()
        for at in range(0, len(groups), _AT_ONCE):
            found += await self._sampled(groups[at : at + _AT_ONCE])
        return found

    async def _sampled(self, groups: Sequence[_Group]) -> list[Cluster]:
        latest = await asyncio.gather(*(self._latest(group) for group in groups))
        kept = await letters(self._store, ((each.ref, each.job) for each in latest if each is not None))
        found = []
        for group, last in zip(groups, latest, strict=True):
            record = None if last is None else kept.get((last.ref, last.job))
            if record is not None and record.fingerprint == group.fingerprint:
                sample = self._letter(group.member, record)
                found.append(Cluster(group.channel, group.name, group.fingerprint, -group.size, sample))
        return found

    async def _latest(self, group: _Group) -> Entry | None:
        """The last one that died and did not leave."""
        subject = subjects.index(group.member.ref, fingerprint=group.fingerprint)
        last = await stream.last(self._store.link, subject)
        if last is None or last.data:
            return None if last is None else entry(last)
        async for page in backwards(self._store.link, subject, last.seq, _AT_ONCE):
            for message in page:
                if message.data:
                    return entry(message)
        return None

    async def page(self, wanted: DeadFilter, after: str | None, limit: int) -> DeadPage:
        """The latest first: by consumer, reason and fingerprint from the index, the rest looked through."""
        before = _place(after)
        await self._store.fresh()
        members = {member.ref: member for member in self._members(wanted.channel, wanted.consumer)}
        if not members or limit < 1:
            return DeadPage([], None)
        last = int((await self._store.info())["state"]["last_seq"])
        until = last if before is None else min(before - 1, last)
        found, looked = list[_Placed](), 0
        async for portion in self._portions(wanted, members, until, limit + 1):
            found += await self._meant(wanted, members, portion)
            looked += len(portion)
            if len(found) > limit:
                return DeadPage([each.letter for each in found[:limit]], str(found[limit - 1].seq))
            if looked >= _MOST:
                return DeadPage([each.letter for each in found], str(portion[-1].seq))
        return DeadPage([each.letter for each in found], None)

    async def _portions(
        self, wanted: DeadFilter, members: _Members, until: int, needed: int
    ) -> AsyncIterator[Sequence[Stored]]:
        """The index from a sequence back to the time that is asked for, as many entries as are worth it."""
        ref = min(members) if len(members) == 1 else "*"
        subject = subjects.index(ref, wanted.reason, wanted.fingerprint)
        since = 0 if wanted.since is None else to_micros(wanted.since)
        deep = wanted.kind is not None or wanted.text is not None
        page, size = (_PAGE, _AT_ONCE) if deep else (min(2 * needed, _PAGE), min(needed, _AT_ONCE))
        async for messages in backwards(self._store.link, subject, until, page):
            for at in range(0, len(messages), size):
                portion = messages[at : at + size]
                yield portion
                # Whatever stands before was stored earlier, and died before it was stored.
                if self._entries.published(portion[-1]) < since:
                    return

    async def _meant(self, wanted: DeadFilter, members: _Members, portion: Sequence[Stored]) -> list[_Placed]:
        """Those of some entries whose dead letters a filter means."""
        entries = [each for each in map(entry, portion) if each is not None]
        timely = [each for each in entries if each.ref in members and _in_time(wanted, each)]
        kept = await letters(self._store, ((each.ref, each.job) for each in timely))
        found = []
        for each in timely:
            record = kept.get((each.ref, each.job))
            letter = None if record is None else self._letter(members[each.ref], record)
            if letter is not None and wanted.holds(letter):
                found.append(_Placed(each.seq, letter))
        return found

    async def one(self, channel: str, consumer: str, job_id: str) -> DeadLetter | None:
        """One dead letter with its event, as far as that can still be found."""
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

    def _letter(self, member: Member, record: Record) -> DeadLetter:
        position = self._store.registry.position(record.seq)
        return DeadLetter(shown(record, member.channel, member.name, position), record.fingerprint)


def _times(span: tuple[int, int] | None) -> tuple[datetime, datetime] | None:
    return None if span is None else (from_micros(span[0]), from_micros(span[1]))


def _in_time(wanted: DeadFilter, letter: Entry) -> bool:
    return (wanted.since is None or letter.died >= to_micros(wanted.since)) and (
        wanted.until is None or letter.died < to_micros(wanted.until)
    )


def _place(after: str | None) -> int | None:
    """The entry behind which a page goes on."""
    if after is None:
        return None
    place = job_number(after)
    if not place:
        raise InvalidInput(f"{after[:40]!r} is no place in the list of dead letters; take a page's `after`")
    return place
