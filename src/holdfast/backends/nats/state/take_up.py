"""Take-up: what follows a consumer's frontier in the log, and which of it becomes jobs of their own.

A claim of a consumer without an order takes plain events as they stand in the log. Jobs of their own become
events with a time or a priority, which come first and therefore have marks that are found without reading
the log; events that expired while they waited; and everything for ordered consumers, whose events of one key
wait for each other.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.batch_builder import BatchBuilder
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Frontier
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.publish_outcome import IdempotencyKeys, foreign_key
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import codec, stream, subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale
from holdfast.backends.nats.wire.codec import to_micros
from holdfast.backends.nats.wire.parser import Raw, StoredMessage, stored
from holdfast.model.errors import Overloaded

_KEEP = 0.5  # of the reserve of a store that is nearly full: a job has to end somewhere, too
PAGE = 400
"""Events that become jobs in one batch: a foreign client's event takes a key beside its job."""
_MARKS, _MOST, _MOST_PASSED = 1000, 900, 5000
_DUE, _PRIORITY, _BATCH, _PARTS = (
    f"\r\n{name}:".encode() for name in (subjects.DUE, subjects.PRIORITY, subjects.BATCH, subjects.PART_COUNT)
)
_BUFFERS = 32
"""Consumers for which a process reads ahead: each may hold some megabytes."""
_READ = 1000
"""Entries that are read at once, where so many follow."""


@dataclass(slots=True)
class Unread:
    """An entry of the log as it came, parsed when more is asked of it: what others claim is read, too."""

    seq: int
    raw: Raw
    _message: StoredMessage | None = None

    @property
    def message(self) -> StoredMessage:
        if self._message is None:
            self._message = stored(self.raw)
        return self._message

    @property
    def is_special(self) -> bool:
        return _DUE in self.raw[0] or _PRIORITY in self.raw[0]

    @property
    def is_foreign(self) -> bool:
        return _BATCH not in self.raw[0]

    @property
    def is_large(self) -> bool:
        """Whether it came in parts."""
        return _PARTS in self.raw[0]


@dataclass(slots=True)
class Taken:
    """What a step of the take-up passes: members of a lease, jobs of their own, and the frontier after it."""

    frontier: Frontier
    before: Frontier
    members: list[Unread] = field(default_factory=list)
    jobs: list[StoredJob] = field(default_factory=list)
    foreign: list[StoredMessage] = field(default_factory=list)

    @property
    def moves(self) -> bool:
        """Whether there is anything to pass."""
        return self.frontier != self.before


@dataclass(slots=True)
class _ReadAhead:
    """The entries of a channel from behind `start` up to `end`, as far as they are still wanted."""

    start: int
    end: int
    generation: int
    is_whole: bool = False
    """Whether the log ended there when it was read the last time."""
    messages: deque[Unread] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class TakeUp:
    """Reads ahead of frontiers, and moves them past what becomes jobs."""

    def __init__(
        self, store: NatsStore, entries: Entries, keys: IdempotencyKeys, leases: LeaseRecords
    ) -> None:
        self._store, self._entries, self._keys, self._leases = store, entries, keys, leases
        self._ahead: dict[str, _ReadAhead] = {}
        self._expiries: dict[str, tuple[object, int]] = {}
        """By consumer: when to look for expired events again, with the wait that this was reckoned by."""
        self._unmarked: defaultdict[str, int] = defaultdict(int)
        """By consumer: from its frontier up to here there are no marks."""
        store.when_changed.append(self._unmarked.clear)

    # the log behind a frontier

    async def behind(
        self, member: Member, frontier: Frontier, limit: int, *, looked: bool = False
    ) -> list[Unread]:
        """Return the next `limit` entries behind a frontier, fewer where there are fewer.

        What was read for one claim and not taken is there for the next one: entries never change. Who has
        `looked` a moment ago does not ask again what has been appended since. Raises `Stale` where somebody
        works with a newer frontier by now.
        """
        at, generation = frontier.at, self._store.generation
        ahead = self._ahead.pop(member.ref, None)
        if ahead is None or ahead.generation != generation or not ahead.start <= at <= ahead.end:
            ahead = _ReadAhead(at, at, generation)
        self._ahead[member.ref] = ahead
        for ref in list(self._ahead)[:-_BUFFERS]:  # those that were asked for longest ago
            del self._ahead[ref]
        async with ahead.lock:
            if at < ahead.start:
                raise Stale("the frontier was moved meanwhile")
            while ahead.messages and ahead.messages[0].seq <= at:
                ahead.messages.popleft()
            ahead.start = max(at, ahead.start)
            if len(ahead.messages) < limit and not (looked and ahead.is_whole):
                wanted, end = limit - len(ahead.messages), ahead.end
                found, ahead.end, ahead.is_whole = await self._entries.raw_page(
                    member.channel, end, wanted, _READ
                )
                ahead.messages.extend(Unread(*each) for each in found)
            return [each for each in islice(ahead.messages, limit) if each.seq > at]

    async def marks(self, member: Member) -> list[StoredMessage]:
        """Return marks of special events that were not taken up, as far as this process knows; for an
        ordered consumer one of them at most."""
        frontier, ordered = self._store.mirror.frontiers.get(member.ref), member.policy.ordered
        if frontier is None:
            return []
        generation, connection = self._store.generation, self._store.connection
        seen = connection.seen if generation == connection.generation else 0
        after = max(frontier.at + 1 if ordered else frontier.special, self._unmarked[member.ref])
        first = await connection.next(subjects.special(member.channel), after)
        if generation == self._store.generation:
            self._unmarked[member.ref] = max(after, seen) if first is None else first.seq - 1
        if first is None or ordered:
            return [] if first is None else [first]
        query = {"seq": first.seq, "next_by_subj": subjects.special(member.channel), "batch": PAGE}
        return (await connection.read(query))[0]

    async def marked(self, member: Member, frontier: Frontier, specials: Iterable[int]) -> set[int]:
        """Return which special events have marks that a frontier has passed."""
        seqs = sorted(specials)
        if not seqs or member.policy.ordered:
            return set()
        marked, after, pending = set[int](), seqs[0], 1
        while pending and after < seqs[-1] + 1:
            query = {"seq": after + 1, "next_by_subj": subjects.special(member.channel), "batch": _MARKS}
            marks, pending = await self._store.connection.read(query)
            marked |= {each.seq - 1 for each in marks if each.seq <= frontier.special}
            after = marks[-1].seq if marks else seqs[-1] + 1
        return marked

    async def plain(self, member: Member, want: int, now: int, *, looked: bool = False) -> Taken:
        """Return what has to be passed to get `want` plain events, or as many as a batch allows."""
        look = want or PAGE
        while True:
            found, taken = await self._sorted(member, look, now, want, looked=looked)
            passed = not found or taken.frontier.at >= found[-1].seq
            if (
                (want and len(taken.members) >= want)
                or len(found) < look
                or not passed
                or look >= _MOST_PASSED
            ):
                return taken
            look = min(2 * look + PAGE, _MOST_PASSED)

    async def _sorted(
        self,
        member: Member,
        look: int,
        now: int,
        want: int,
        *,
        looked: bool = False,
        as_jobs: bool = False,
    ) -> tuple[list[Unread], Taken]:
        """Pass entries until there are `want` members, or a page of jobs; returns also what was looked at.

        All of it is about one frontier, which the caller replaces: if a newer one is known meanwhile, that is
        refused.
        """
        frontier, at = self._store.mirror.frontier(member.ref), 0
        found = await self.behind(member, frontier, look, looked=looked)
        specials = [each.seq for each in found if each.is_special]
        marked = await self.marked(member, frontier, specials) if specials else set[int]()
        taken, ahead = Taken(frontier, frontier), set(frontier.ahead)
        wait = member.policy.expires_after is not None
        for each in found:
            if len(taken.jobs) >= PAGE or len(taken.jobs) + len(taken.foreign) >= _MOST:
                break
            if each.seq in ahead:
                ahead.discard(each.seq)
            elif each.seq not in marked:
                if as_jobs or each.is_special or (wait and self.expiry(member, each.message) <= now):
                    taken.jobs.append(self.record(member, each.message))
                elif len(taken.members) < want:
                    taken.members.append(each)
                else:
                    break
            if each.is_foreign:  # also what left before its turn: it is found by its id from here on
                taken.foreign.append(each.message)
            at = each.seq
        taken.frontier = replace(frontier, at=max(at, frontier.at), ahead=tuple(sorted(ahead)))
        return found, taken

    async def passed(self, member: Member) -> int:
        """Return the sequence up to which a consumer needs nothing of the log to take it up."""
        frontier = self._store.mirror.frontier(member.ref)
        if frontier.special <= frontier.at and not frontier.ahead:
            return frontier.at
        taken = await self.plain(member, 0, 0)
        return taken.jobs[0].seq - 1 if taken.jobs else taken.frontier.at

    def record(self, member: Member, message: StoredMessage) -> StoredJob:
        """Return the job that an entry becomes."""
        return job_records.of_entry(member, message, self._entries.published(message))

    def expiry(self, member: Member, message: StoredMessage) -> int:
        """Return when a plain event expires that waits in the log."""
        published = self._entries.published(message)
        return job_records.expiry(member, published) or published

    async def keys(self, channel: str, foreign: Iterable[StoredMessage]) -> list[BatchMessage]:
        """Another client's events get keys as well, so that they are found by their ids."""
        wanted = {
            subjects.key(channel, codec.source(message), codec.event_id(message)): message.seq
            for message in foreign
        }
        if not wanted:
            return []
        known = await self._keys.find(channel, list(wanted))
        return [foreign_key(key, seq, 0) for key, seq in wanted.items() if key not in known]

    # jobs of their own

    async def special(self, member: Member, marks: Sequence[StoredMessage]) -> bool:
        """Make jobs of special events; returns whether there may be more. Raises `Stale`, `Overloaded`."""
        if member.policy.ordered:  # its events become jobs in the order of the log
            return False
        frontier = self._store.mirror.frontier(member.ref)
        marks = [each for each in marks if each.seq > frontier.special]
        outcomes = await self._entries.outcomes(member.channel, marks)
        passed, wanted = frontier.special, list[int]()
        for mark in marks:
            outcome = outcomes.get(mark.headers.get(subjects.PUBLISH), True)
            if outcome is None:  # whatever follows it waits as well
                break
            passed = mark.seq
            if outcome and mark.seq - 1 > frontier.at and mark.seq - 1 not in frontier.ahead:
                wanted.append(mark.seq - 1)
        if passed == frontier.special:
            return False
        found = await self._entries.at(member.channel, wanted)
        for seq in wanted:
            # Another replica may lack what the one that had the mark has.
            if seq not in found and await stream.has(self._store.connection, seq):
                raise Stale("the event of a mark is not there yet")
        jobs = [self.record(member, found[seq]) for seq in wanted if seq in found]
        await self._make(member, Taken(replace(frontier, special=passed), frontier, jobs=jobs))
        return True

    async def every(self, member: Member, now: int) -> bool:
        """Make jobs of the next page of the log; returns whether there may be more.

        Raises `Stale`, `Overloaded`.
        """
        found, taken = await self._sorted(member, PAGE, now, 0, as_jobs=True)
        await self._make(member, taken)
        return bool(found) and (found[-1].seq > taken.frontier.at or len(found) >= PAGE)

    async def expired(self, member: Member, now: int) -> None:
        """Make jobs of events that have expired in the log, so that they can be buried.

        They are the oldest: where the first one has not, nobody looks again before it will have. Raises
        `Stale`, `Overloaded`.
        """
        wait = member.policy.expires_after
        known, look = self._expiries.get(member.ref, (None, 0))
        if wait is None or (known == wait and now < look):
            return
        found, taken = await self._sorted(member, PAGE, now, 0)
        plain = next((each for each in found if each.seq > taken.frontier.at), None)
        # A page that left before its turn is passed as well: what comes behind it may have expired.
        again = bool(taken.jobs) or (plain is None and len(found) >= PAGE)
        if again:
            await self._make(member, taken)
        following = now + to_micros(wait) if plain is None else self.expiry(member, plain.message)
        self._expiries[member.ref] = wait, (now if again else following)

    async def _make(self, member: Member, taken: Taken) -> None:
        """One page in one batch: the jobs, their count, keys of foreign events, and the frontier."""
        batch = BatchBuilder(self._store, self._leases, member.ref)
        for record in taken.jobs:
            batch.create(record)
        batch.also(await self.keys(member.channel, taken.foreign))
        if not taken.moves:
            return
        batch.move(taken.frontier)
        await self._store.capacity.use(batch.messages, keep=_KEEP)
        await batch.commit()

    async def advance(self, now: int) -> None:
        """Make jobs of what time will move: special events, and events that expired in the log. One that is
        overtaken leaves the rest to others."""
        registry = self._store.registry
        wanted = {subjects.special(channel): channel for channel in registry.by_channel}
        newest = {wanted[each.subject]: each.seq for each in await self._store.connection.exact(list(wanted))}
        todo = [
            member
            for member in registry.members.values()
            if member.policy.expires_after is not None
            or self._has_marks(member, newest.get(member.channel, 0))
        ]
        await asyncio.gather(*(self._advance(each, newest.get(each.channel, 0), now) for each in todo))

    def _has_marks(self, member: Member, newest: int) -> bool:
        frontier = self._store.mirror.frontiers.get(member.ref)
        if frontier is None:
            return False
        return newest > (frontier.at + 1 if member.policy.ordered else frontier.special)

    async def _advance(self, member: Member, newest: int, now: int) -> None:
        with suppress(Stale, Overloaded):
            async with self._store.lock(member.ref):
                if self._has_marks(member, newest):
                    if member.policy.ordered:
                        await self.every(member, now)
                    else:
                        await self.special(member, await self.marks(member))
                await self.expired(member, now)


def is_special(message: StoredMessage) -> bool:
    """Return whether an event has a time or a priority."""
    return subjects.DUE in message.headers or subjects.PRIORITY in message.headers
