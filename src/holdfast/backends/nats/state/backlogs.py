"""Backlogs: how many jobs of each consumer are in which state.

What waits is the difference between two places in the log: the server tells with a read how many messages of
a channel follow. Of all else there are counts, and the lists of leases.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Frontier
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.publish_outcome import PublishOutcomes
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.state.take_up import is_special
from holdfast.backends.nats.wire import codec, subjects
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.states import State

_END = 1 << 62
_MARKS, _FEW = 1000, 20
_LOOKED_AT, _ENOUGH = 10, 1000
"""Consumers, and events of each, that tell how loaded a store is."""


@dataclass(slots=True)
class Backlog:
    """A consumer's jobs by state, and since when its oldest and its newest ready jobs have been due."""

    states: Counter[str] = field(default_factory=Counter)
    oldest_ready: int | None = None
    newest_ready: int | None = None
    next_due: int | None = None

    def ready(self, *times: int) -> None:
        """Some ready jobs have been due since then."""
        every = [each for each in (*times, self.oldest_ready, self.newest_ready) if each is not None]
        self.oldest_ready, self.newest_ready = (min(every), max(every)) if every else (None, None)

    @property
    def ready_times(self) -> tuple[int, int] | None:
        if self.oldest_ready is None or self.newest_ready is None:
            return None
        return self.oldest_ready, self.newest_ready

    def scheduled(self, due: int | None) -> None:
        if due is not None:
            self.next_due = due if self.next_due is None else min(due, self.next_due)


class _Ends(NamedTuple):
    """For each channel its newest message, the newest mark of a special event, where a publish that is under
    way begins, and which publishes were aborted."""

    newest: Mapping[str, StoredMessage]
    marks: Mapping[str, int]
    opened: Mapping[str, int]
    aborted: frozenset[str]


class Backlogs:
    """Counts jobs."""

    def __init__(
        self,
        store: NatsStore,
        entries: Entries,
        outcomes: PublishOutcomes,
        leases: LeaseRecords,
    ) -> None:
        self._store, self._entries, self._outcomes, self._leases = store, entries, outcomes, leases

    async def of(self, members: Sequence[Member]) -> dict[str, Backlog]:
        """Return the backlogs of some consumers, as the mirror has them, without those that are gone."""
        mirror = self._store.mirror
        known, ready = dict(mirror.frontiers), mirror.queues.ready_times()
        there = [member for member in members if member.ref in known]
        # Frontiers and jobs are of one moment: other calls go on while this reads what else there is.
        found = {each.ref: self._of_jobs(each.ref, ready.get(each.ref, ())) for each in there}
        ends = await self._ends({each.channel for each in there})
        await self._leases.read((each.ref, lease) for each in there for lease in known[each.ref].leases)
        for each in there:
            self._add_leased(each.ref, known[each.ref], found[each.ref])
        await asyncio.gather(
            *(self._add_waiting(each, known[each.ref], ends, found[each.ref]) for each in there)
        )
        return found

    def _of_jobs(self, ref: str, ready: Sequence[int]) -> Backlog:
        """Count jobs of their own, and what has ended."""
        mirror = self._store.mirror
        backlog = Backlog(mirror.counts(ref))
        backlog.ready(*ready)
        backlog.scheduled(mirror.queues.next_due(ref))
        return backlog

    def _add_leased(self, ref: str, frontier: Frontier, backlog: Backlog) -> None:
        """Count the members of leases."""
        backlog.states[State.DONE] += frontier.done
        for lease in frontier.leases:
            record = self._leases.known(ref, lease)
            backlog.states[State.LEASED] += record.left(lease)
            backlog.states[State.DONE] += record.done()

    async def _ends(self, channels: Iterable[str]) -> _Ends:
        wanted = [*channels, *map(subjects.special, channels)]
        connection = self._store.connection
        newest, opened, aborted = await asyncio.gather(
            connection.exact(wanted), connection.last(["HF.O.>"]), connection.last(["HF.A.>"])
        )
        begun = dict[str, int]()
        for each in opened:
            channel = each.subject.split(".", 3)[3]
            if (
                each.data
                and await self._outcomes.one(channel, each.subject.split(".")[2], each.stamp) is None
            ):
                begun[channel] = min(each.seq, begun.get(channel, _END))
        marks, prefix = dict[str, int](), subjects.SPECIALS
        for each in newest:
            if each.subject.startswith(prefix):
                marks[each.subject.removeprefix(prefix)] = each.seq
        events = {each.subject: each for each in newest if not each.subject.startswith(prefix)}
        return _Ends(events, marks, begun, frozenset(each.subject.split(".", 3)[3] for each in aborted))

    async def _add_waiting(self, member: Member, frontier: Frontier, ends: _Ends, backlog: Backlog) -> None:
        """Count what waits in the log."""
        channel, newest = member.channel, ends.newest.get(member.channel)
        if newest is None or newest.seq <= frontier.at:
            return
        query = {"seq": frontier.at + 1, "next_by_subj": channel, "batch": 1}
        found, pending = await self._store.connection.read(query)
        if not found:
            return
        count, end = pending + 1, ends.opened.get(channel, _END)
        if end < _END:
            count -= await self._entries.count(channel, max(end, frontier.at))
        count -= sum(found[0].seq <= seq < end for seq in frontier.ahead)  # what stands before was trimmed
        aborted = set[int]()
        if channel in ends.aborted:
            aborted = set(await self._outcomes.aborted(channel, frontier.at, min(end, newest.seq)))
            count -= len(aborted)
        if ends.marks.get(channel, 0) > frontier.at + 1:
            count -= await self._specials(member, frontier, end, aborted, backlog)
        if count > 0:
            backlog.states[State.READY] += count
            first = await self._first_plain(member, frontier, found[0])
            last = await self._last_plain(member, frontier, newest)
            backlog.ready(self._entries.published(first), self._entries.published(last))

    async def _specials(
        self, member: Member, frontier: Frontier, end: int, aborted: set[int], backlog: Backlog
    ) -> int:
        """Count special events behind the frontier; those that have no jobs yet are added by their times."""
        count, pending, after = 0, 1, frontier.at + 1
        taken = frontier.at if member.policy.ordered else frontier.special
        while pending:
            query = {"seq": after + 1, "next_by_subj": subjects.special(member.channel), "batch": _MARKS}
            marks, pending = await self._store.connection.read(query)
            for mark in marks:
                after = mark.seq
                if mark.seq > end or mark.seq - 1 in aborted or mark.seq - 1 in frontier.ahead:
                    continue
                count += 1
                if mark.seq > taken:
                    published = self._entries.published(mark)
                    due = max(codec.delivery(mark).at or 0, published)
                    backlog.states[State.SCHEDULED if due > published else State.READY] += 1
                    if due > published:
                        backlog.scheduled(due)
                    else:
                        backlog.ready(due)
        return count

    async def _first_plain(self, member: Member, frontier: Frontier, first: StoredMessage) -> StoredMessage:
        """Return the event that waits for longest; where many others stand before it, one of them."""
        if not is_special(first) and first.seq not in frontier.ahead:
            return first
        found, _ = await self._entries.page(member.channel, frontier.at, _FEW)
        plain = (each for each in found if not is_special(each) and each.seq not in frontier.ahead)
        return next(plain, first)

    async def _last_plain(self, member: Member, frontier: Frontier, newest: StoredMessage) -> StoredMessage:
        """Return the event that waits for the shortest time; behind many others, one of these."""
        last = newest
        for _ in range(_FEW):
            if not is_special(last) and last.seq not in frontier.ahead:
                return last
            query = {"multi_last": [member.channel], "up_to_seq": last.seq - 1, "batch": 1}
            found, _ = await self._store.connection.read(query)
            if not found or found[0].seq <= frontier.at:
                break
            last = found[0]
        return last

    async def load(self) -> int:
        """Return how many live jobs there are, about: those in hand, and what waits for some consumers."""
        mirror = self._store.mirror
        leased = sum(
            self._leases.known(ref, lease).left(lease)
            for ref, frontier in mirror.frontiers.items()
            for lease in frontier.leases
        )
        some = list(self._store.registry.members.values())[:_LOOKED_AT]
        at = {
            member.ref: mirror.frontiers[member.ref].at for member in some if member.ref in mirror.frontiers
        }
        counts = await asyncio.gather(
            *(self._entries.count(member.channel, at[member.ref]) for member in some if member.ref in at)
        )
        return len(mirror.queues.jobs) + leased + sum(min(count, _ENOUGH) for count in counts)
