"""Lease records: what happened to the members of a lease, one message for each lease.

A lease without a record is as its claim made it. Completing all of its members, a part of them, or moving
their deadlines is one message that replaces the record it was decided on: it travels alone, and waits for no
batch. Its subject tells about where its members stand, so that the lease of an event is found long after it
has ended: LEVEL is the smallest width, as a power of two, that spans the members, BUCKET the first of them
in units of that width.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import orjson

from holdfast.backends.nats.state.frontiers import Frontier, Lease, decode_runs, encode_runs
from holdfast.backends.nats.state.store import TRIES, NatsStore
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale, backoff, state
from holdfast.model.errors import Unavailable
from holdfast.model.states import State

_LEVELS = range(8, 64, 4)
_AT_ONCE = 1_000_000
"""Microseconds: of two extensions at the same time the later deadline stands."""
_MOST_KNOWN = 4_000
"""Records that a process remembers."""

Group = tuple[int, tuple[int, ...]]
"""A time, and the members that it is about."""
Place = tuple[str, int]
"""A consumer and a token."""


@dataclass(frozen=True)
class LeaseRecord:
    """Which members have ended and when, which became jobs of their own, and whose deadline was moved."""

    ended: tuple[Group, ...] = ()
    out: frozenset[int] = frozenset()
    until: tuple[Group, ...] = ()
    state: State = State.DONE
    revision: int = field(default=0, compare=False)

    @cached_property
    def ends(self) -> dict[int, int]:
        """When each member ended."""
        return {seq: time for time, seqs in self.ended for seq in seqs}

    def is_open(self, seq: int) -> bool:
        return seq not in self.ends and seq not in self.out

    def open(self, lease: Lease) -> list[int]:
        """Return the members that are still leased."""
        if not self.ended and not self.out:
            return lease.members
        return [seq for seq in lease.members if self.is_open(seq)]

    def left(self, lease: Lease) -> int:
        """Return how many members are still leased."""
        return lease.count - sum(len(seqs) for _, seqs in self.ended) - len(self.out)

    def done(self) -> int:
        """Return how many members were completed."""
        return sum(len(seqs) for _, seqs in self.ended) if self.state is State.DONE else 0

    @cached_property
    def _deadlines(self) -> dict[int, int]:
        return {seq: time for time, seqs in reversed(self.until) for seq in seqs}

    def deadline(self, lease: Lease, seq: int) -> int:
        """Return until when a member is leased."""
        return self._deadlines.get(seq, lease.deadline)

    def first_deadline(self, lease: Lease) -> int:
        """Return when the first of the open members is overdue."""
        return min((self.deadline(lease, seq) for seq in self.open(lease)), default=lease.deadline)

    def with_ended(self, seqs: Sequence[int], now: int) -> LeaseRecord:
        return replace(self, ended=(*self.ended, (now, tuple(seqs))), until=self._until_without(seqs))

    def with_until(self, seqs: Sequence[int], until: int) -> LeaseRecord:
        return replace(self, until=((until, tuple(seqs)), *self._until_without(seqs)))

    def with_out(self, seqs: Iterable[int]) -> LeaseRecord:
        gone = frozenset(seqs)
        return replace(self, out=self.out | gone, until=self._until_without(gone))

    def _until_without(self, seqs: Collection[int]) -> tuple[Group, ...]:
        gone = frozenset(seqs)
        groups = ((time, tuple(seq for seq in group if seq not in gone)) for time, group in self.until)
        return tuple((time, group) for time, group in groups if group)

    def message(self, ref: str, lease: Lease) -> BatchMessage:
        """Return the message that puts this in the place of what it was made from."""
        whole = lease.count
        out = sorted(self.out)
        body = [
            [lease.first, lease.runs],
            self.state,
            [_stored(*group, whole) for group in self.ended],
            [out[0], encode_runs(out)] if out else None,
            [_stored(*group, whole) for group in self.until],
        ]
        return state(lease_subject(ref, lease), orjson.dumps(body), self.revision)


_NOTHING = LeaseRecord()


def _stored(time: int, seqs: tuple[int, ...], whole: int) -> list[Any]:
    return [time] if len(seqs) == whole else [time, seqs[0], encode_runs(seqs)]


def decode(data: bytes, revision: int) -> tuple[list[int], LeaseRecord]:
    """Return the members of a lease and its record."""
    (first, runs), ended_as, ended, out, until = orjson.loads(data)
    members = decode_runs(first, runs)

    def groups(stored: list[list[Any]]) -> tuple[Group, ...]:
        return tuple((time, tuple(decode_runs(*part) if part else members)) for time, *part in stored)

    gone = frozenset(decode_runs(*out)) if out else frozenset[int]()
    return members, LeaseRecord(groups(ended), gone, groups(until), State(ended_as), revision)


def lease_subject(ref: str, lease: Lease) -> str:
    """Return where the record of a lease is."""
    width = lease.last - lease.first + 1
    level = next(each for each in _LEVELS if 1 << each >= width)
    return subjects.lease(ref, level, lease.first >> level, lease.token)


def lease_patterns(ref: str, seq: int, last: int) -> list[str]:
    """Return where the lease of an event can be, in a stream that ends at `last`."""
    levels = [level for level in _LEVELS if level < max(last.bit_length(), 8) + 4]
    places = ((level, (seq >> level) - back) for level in levels for back in (0, 1))
    return [subjects.lease(ref, level, bucket, "*") for level, bucket in places if bucket >= 0]


@dataclass(slots=True)
class _Change:
    """What some caller wants of members of a lease: their end at a time, or another deadline."""

    seqs: Sequence[int]
    time: int
    ends: bool
    done: asyncio.Future[set[int]]

    def applied(self, lease: Lease, record: LeaseRecord) -> tuple[set[int], LeaseRecord]:
        accepted = sorted(seq for seq in self.seqs if record.is_open(seq))
        if self.ends:
            return set(accepted), record.with_ended(accepted, self.time) if accepted else record
        accepted = [seq for seq in accepted if record.deadline(lease, seq) <= self.time + _AT_ONCE]
        moved = [seq for seq in accepted if record.deadline(lease, seq) < self.time]
        return set(accepted), record.with_until(moved, self.time) if moved else record


class LeaseRecords:
    """Reads and replaces records. What comes while one is on its way travels in the next message."""

    def __init__(self, store: NatsStore) -> None:
        self._store = store
        self._known: dict[Place, LeaseRecord] = {}
        self._locks: defaultdict[Place, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asked: defaultdict[Place, list[_Change]] = defaultdict(list)
        self._drains: set[asyncio.Task[None]] = set()
        store.when_changed.append(self._known.clear)

    def lock(self, ref: str, token: int) -> asyncio.Lock:
        """Return a lease's lock within this process: batches and single messages take turns."""
        return self._locks[ref, token]

    def known(self, ref: str, lease: Lease) -> LeaseRecord:
        """Return a record as this process knows it. What it says of members that are gone is final."""
        return self._known.get((ref, lease.token), _NOTHING)

    def is_known(self, ref: str, lease: Lease) -> bool:
        return (ref, lease.token) in self._known

    def begin(self, ref: str, lease: Lease) -> None:
        """A lease of our own, to which nothing has happened yet."""
        self._forget_some()
        self._known.setdefault((ref, lease.token), _NOTHING)

    def adopt(self, ref: str, lease: Lease, record: LeaseRecord, revision: int) -> None:
        """Take over a record of our own that was committed."""
        old = self._known.get((ref, lease.token))
        if old is None or old.revision < revision:
            self._forget_some()
            self._known[ref, lease.token] = replace(record, revision=revision)

    def tidied(self, ref: str, frontier: Frontier) -> Frontier:
        """Return a frontier without the leases of which this process knows that they have ended."""
        known = [(lease, self.known(ref, lease)) for lease in frontier.leases]
        ended = [record for lease, record in known if record.left(lease) == 0]
        if not ended:
            return frontier
        left = tuple(lease for lease, record in known if record.left(lease))
        return replace(frontier, leases=left, done=frontier.done + sum(record.done() for record in ended))

    def _forget_some(self) -> None:
        """Forget half of what is known, the oldest first: what is needed again is read again."""
        if len(self._known) > _MOST_KNOWN:
            for place in list(self._known)[: _MOST_KNOWN // 2]:
                if not self._asked.get(place) and not self._locks[place].locked():
                    for kept in (self._known, self._asked, self._locks):
                        kept.pop(place, None)

    async def read(self, leases: Iterable[tuple[str, Lease]]) -> None:
        """Learn what became of some leases."""
        wanted = {lease_subject(ref, lease): (ref, lease.token) for ref, lease in leases}
        if not wanted:
            return
        self._forget_some()
        found = {each.subject: each for each in await self._store.connection.exact(list(wanted))}
        for subject, place in wanted.items():
            message = found.get(subject)
            if message is None:
                self._known.setdefault(place, _NOTHING)
            elif message.seq > self._known.get(place, _NOTHING).revision:
                self._known[place] = decode(message.data, message.seq)[1]

    async def end(self, ref: str, lease: Lease, seqs: Sequence[int], now: int) -> set[int]:
        """Complete members; returns those that were still leased."""
        return await self._ask(ref, lease, seqs, now, ends=True)

    async def extend(self, ref: str, lease: Lease, seqs: Sequence[int], until: int) -> set[int]:
        """Move the deadlines of members; returns those that were still leased, and not for longer.

        Whoever looks for what is overdue reads a record when the deadline has passed that he knows. So none
        may come closer here.
        """
        return await self._ask(ref, lease, seqs, until, ends=False)

    async def _ask(self, ref: str, lease: Lease, seqs: Sequence[int], time: int, *, ends: bool) -> set[int]:
        change = _Change(seqs, time, ends, asyncio.get_running_loop().create_future())
        asked = self._asked[ref, lease.token]
        asked.append(change)
        if len(asked) == 1:
            # A task of its own: a caller that is cancelled must not take the others' changes with it.
            drain = asyncio.create_task(self._drain(ref, lease))
            self._drains.add(drain)
            drain.add_done_callback(self._drains.discard)
        return await change.done

    async def _drain(self, ref: str, lease: Lease) -> None:
        place, group = (ref, lease.token), list[_Change]()
        try:
            for turn in range(TRIES):
                async with self._locks[place]:
                    group += self._asked.pop(place, [])
                    accepted, record = list[set[int]](), self.known(ref, lease)
                    old = record
                    for change in group:
                        some, record = change.applied(lease, record)
                        accepted.append(some)
                    if record is old or await self._replaced(ref, lease, record):
                        break
                await backoff(turn)
            else:
                raise Unavailable(f"the lease {lease.token} changes too often; try again")
        except Exception as error:
            for change in group:
                if not change.done.done():
                    change.done.set_exception(error)
        else:
            for change, some in zip(group, accepted, strict=True):
                if not change.done.done():
                    change.done.set_result(some)

    async def _replaced(self, ref: str, lease: Lease, record: LeaseRecord) -> bool:
        try:
            revision = await self._store.commit([record.message(ref, lease)])
        except Stale:
            await self.read([(ref, lease)])
            return False
        self.adopt(ref, lease, record, revision)
        return True
