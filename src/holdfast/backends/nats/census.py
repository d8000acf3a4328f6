"""The census of the dead: counting them one by one, beside the counts that move with every death."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import orjson

from holdfast import failpoints
from holdfast.backends.nats import records, subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Message, Stale
from holdfast.backends.nats.bulk import Bulk
from holdfast.backends.nats.edit import fold
from holdfast.backends.nats.index import Entry, entry
from holdfast.backends.nats.link import Link
from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.mirror import TOMBSTONE_SECONDS
from holdfast.backends.nats.registry import Member, Registry
from holdfast.backends.nats.store import TRIES, Store
from holdfast.model.deadletters import Drift, Fold
from holdfast.model.errors import Unavailable
from holdfast.model.job import LIVE, State
from holdfast.model.upkeep import Lock

_PAGE, _AT_ONCE = 1000, 400
_TRUSTED = TOMBSTONE_SECONDS / 2
_IDLE = 24 * 3600 * 1_000_000  # microseconds


class Roll:
    """The dead letters of one consumer, kept up to date by reading the index on from where it was."""

    def __init__(self, link: Link, ref: str) -> None:
        self._link, self._index, self._left = link, subjects.index(ref), subjects.left(ref)
        self._known = {self._index: 0, self._left: 0}
        self._began = time.monotonic()
        self._dead: dict[int, Entry] = {}

    async def read_on(self) -> None:
        """Learn of everybody who died or left since the last time."""
        async for message in self._new(self._index):
            died = entry(message)
            if died is not None:
                self._dead[died.job] = died
        async for message in self._new(self._left):
            for job in orjson.loads(message.data):
                if job in self._dead and self._dead[job].seq < message.seq:
                    del self._dead[job]
        if time.monotonic() - self._began > _TRUSTED:  # some of those who left may be forgotten by now
            raise Unavailable(f"the dead letters could not be counted in {_TRUSTED:g} s; purge some")

    async def _new(self, subject: str) -> AsyncIterator[Stored]:
        pending = 1
        while pending:
            query = {"seq": self._known[subject] + 1, "next_by_subj": subject, "batch": _PAGE}
            found, pending = await self._link.read(query)
            for message in found:
                self._known[subject] = message.seq
                yield message

    def reasons(self) -> Counter[str]:
        return Counter(each.reason for each in self._dead.values())

    def clusters(self) -> Counter[str]:
        return Counter(each.fingerprint for each in self._dead.values())


class Census:
    """Recounts, and brings what an older version has left into the index."""

    def __init__(self, store: Store, locks: Locks, bulk: Bulk) -> None:
        self._store, self._locks, self._bulk = store, locks, bulk

    async def recount(self, repair: bool, lock: Lock) -> list[Drift]:
        """Every consumer's counts against its dead letters, one after the other."""
        await self.fold(lock)  # only what is in the index is counted
        members = self._store.registry.members.values()
        found: list[Drift] = []
        for member in sorted(members, key=lambda each: (each.channel, each.name)):
            found += await self._recounted(member, repair, lock)
        return found

    async def _recounted(self, member: Member, repair: bool, lock: Lock) -> list[Drift]:
        """Exact: the counts did not move while the last of the dead were read, so both are of one moment."""
        roll = Roll(self._store.link, member.ref)
        await roll.read_on()  # the long part, while everybody else goes on
        for turn in range(1, TRIES):
            async with self._store.lock(member.ref):
                await self._store.look_again(turn)
                counted = self._store.mirror.tallied(member.ref)
                await roll.read_on()
                # A batch of which the roll saw the first half is whole once this one is in.
                if not await self._committed([await self._locks.fence(lock)]):
                    continue
                await self._store.mirror.sync()
                if member.ref not in self._store.registry.members:
                    return []
                if counted == self._store.mirror.tallied(member.ref):
                    drift = self._drift(member, roll)
                    if not repair or await self._repaired(member, roll, lock):
                        return drift
        raise Unavailable(f"the dead letters of {member.name!r} change too often to count them; try again")

    def _drift(self, member: Member, roll: Roll) -> list[Drift]:
        counted, found = self._reasons(member), roll.reasons()
        return [
            Drift(member.channel, member.name, reason, counted[reason], found[reason])
            for reason in sorted(counted.keys() | found.keys())
            if counted[reason] != found[reason]
        ]

    def _reasons(self, member: Member) -> Counter[str]:
        counts = self._store.mirror.counts(member.ref).items()
        return Counter({name[5:]: number for name, number in counts if name.startswith("dead:")})

    async def _repaired(self, member: Member, roll: Roll, lock: Lock) -> bool:
        """Move the counts by what they are wrong. That stays as it is, whatever others move meanwhile."""
        mirror, reasons = self._store.mirror, roll.reasons()
        counts = {f"dead:{reason}": by for reason, by in _missing(reasons, self._reasons(member)).items()}
        counts[State.DEAD] = reasons.total() - mirror.counts(member.ref)[State.DEAD]
        counts |= _missing(mirror.queues.states(member.ref), _live(mirror.counts(member.ref)))
        edit = self._store.edit(member.ref)
        edit.correct(counts, _missing(roll.clusters(), mirror.clusters(member.ref)))
        messages = edit.messages()
        return not messages or await self._committed([*messages, await self._locks.fence(lock)])

    async def _committed(self, messages: Sequence[Message]) -> bool:
        try:
            await self._store.commit(messages)
        except Stale:
            return False
        return True

    async def fold(self, lock: Lock | None) -> Fold:
        """Counts of processes that were killed go to those of all. Dead letters that are not in the index are
        brought in, once."""
        now = await self._store.fresh()
        if lock is None:
            if not self._store.registry.indexed:
                return Fold(0)
            idle = self._store.mirror.tallies_before(await self._bulk.first_at(now - _IDLE))
            return Fold(sum(min(len(each), _AT_ONCE) for each in idle.values()))
        await self._locks.fence(lock)
        if self._store.registry.indexed:
            return Fold(await self._inherit(now, lock))
        for member in list(self._store.registry.members.values()):
            await self._index(member, lock)

        async def fenced(wanted: Registry) -> list[Message]:
            return [await self._locks.fence(lock)]

        await self._store.change_registry(Registry.with_index, fenced)
        return Fold(0, bootstrapped=True)

    async def _inherit(self, now: int, lock: Lock) -> int:
        """Whoever wrote no counts for a day is gone, most likely; who is not begins anew."""
        mirror, count, before = self._store.mirror, 0, await self._bulk.first_at(now - _IDLE)
        for ref in mirror.tallies_before(before):
            async with self._store.lock(ref):
                idle = mirror.tallies_before(before).get(ref, [])[:_AT_ONCE]
                if idle and await self._committed([*fold(mirror, idle), await self._locks.fence(lock)]):
                    count += len(idle)
        return count

    # the index of a store that an older version has filled

    async def _index(self, member: Member, lock: Lock) -> None:
        """Each is written again in its turn, so that their order stays that of their deaths."""
        end, after, stale = int((await self._store.info())["state"]["last_seq"]), 0, 0
        while after < end:
            async with self._store.lock(member.ref):
                reached = await self._indexed(member, after, end, lock)
            if reached is None:
                stale += 1
                if stale > TRIES:
                    raise Unavailable(f"the dead letters of {member.name!r} change too often; try again")
                await self._store.look_again(stale)
            else:
                after = reached
                failpoints.hit("dead.mid_bootstrap")

    async def _indexed(self, member: Member, after: int, end: int, lock: Lock) -> int | None:
        """One page; answers how far it came, None where somebody moved one of them meanwhile."""
        query = {"seq": after + 1, "next_by_subj": subjects.dead(member.ref, "*"), "batch": _AT_ONCE}
        found, pending = await self._store.link.read(query)
        edit = self._store.edit(member.ref)
        for message in found:
            record = records.decode(message.data, message.seq) if message.data else None
            if record is not None and record.cluster is None and message.seq <= end:
                edit.index(record)
        messages = edit.messages()
        if messages and not await self._committed([*messages, await self._locks.fence(lock)]):
            return None
        return found[-1].seq if found and pending else end


def _live(counts: Mapping[str, int]) -> dict[str, int]:
    return {each: counts.get(each, 0) for each in LIVE}


def _missing(found: Mapping[str, int], counted: Mapping[str, int]) -> dict[str, int]:
    """What is to be added to each count."""
    return {name: found.get(name, 0) - counted.get(name, 0) for name in found.keys() | counted.keys()}
