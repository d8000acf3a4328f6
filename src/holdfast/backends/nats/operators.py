"""What operators do to jobs: cancel, requeue, look."""

from __future__ import annotations

from holdfast.backends.nats import records, subjects
from holdfast.backends.nats.batch import Stale
from holdfast.backends.nats.ingest import Ingest
from holdfast.backends.nats.keys import Keys
from holdfast.backends.nats.records import Record, job_number, shown
from holdfast.backends.nats.registry import Member
from holdfast.backends.nats.store import TRIES, Store
from holdfast.backends.nats.transitions import Step, Transitions
from holdfast.model.decide import DueKind
from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.model.job import JobRecord, State

_WAITING = (State.READY, State.SCHEDULED)


class Operators:
    """Guarded changes to single jobs, and views of them."""

    def __init__(self, store: Store, keys: Keys, ingest: Ingest, transitions: Transitions) -> None:
        self._store, self._keys, self._ingest = store, keys, ingest
        self._transitions = transitions

    async def cancel(self, channel: str, source: str, event_id: str, consumer: str | None) -> int:
        """scheduled | ready → cancelled."""
        now = await self._store.fresh()
        seq = await self._seq(channel, source, event_id)
        if seq is None:
            return 0
        members = self._store.registry.by_channel.get(channel, ())
        chosen = [member for member in members if consumer in (None, member.name)]

        def waits(record: Record, now: int) -> bool:
            return record.state in _WAITING and (record.source, record.event) == (source, event_id)

        steps = [Step(member.ref, seq, waits, _cancelled) for member in chosen]
        return sum(await self._transitions.apply(steps, now))

    async def _seq(self, channel: str, source: str, event_id: str) -> int | None:
        """Where an event belongs. Before, what others have appended becomes jobs and gets its keys."""
        try:
            key = subjects.key(channel, source, event_id)
        except UnicodeEncodeError:
            raise InvalidInput(f"{event_id!r} of {source!r} is no text that a store could hold") from None
        await self._ingest.level_channel(channel)
        known = (await self._keys.find(channel, [key])).get(key)
        if known is not None:
            return known.place
        # Its key may be forgotten; a dead letter is found all the same.
        copies = await self._store.link.last([subjects.copy(channel, source, event_id)])
        kept = [each for each in copies if subjects.CE_ID in each.headers]
        return subjects.copied(kept[-1].subject) if kept else None

    async def requeue(self, channel: str, consumer: str, job_id: str) -> bool:
        """Back to ready with a newer token."""
        seq = job_number(job_id)
        for _ in range(TRIES):
            now = await self._store.fresh()
            member = self._store.registry.by_name.get((channel, consumer))
            if member is None:
                return False
            async with self._store.lock(member.ref):
                try:
                    requeued = await self._requeue(member, seq, now)
                except Stale:
                    continue
            if requeued:
                await self._transitions.wake({channel})
            return requeued
        raise Unavailable(f"job {job_id} changes too often to requeue it; try again")

    async def _requeue(self, member: Member, seq: int, now: int) -> bool:
        edit, lane = self._store.edit(member.ref), self._store.mirror.revision(subjects.lane(member.ref))
        live = self._store.mirror.queues.job(member.ref, seq)
        old = live or (await self._ended([member], seq)).get(member.ref)
        if old is None or (live is None and old.state is not State.DEAD):
            return False
        new = old.anew(now, member.policy.expires_after)
        if live is None:
            edit.revive(old, new)
        else:
            edit.replace(old, new)
        if member.policy.ordered:
            edit.raise_lane(lane)
        await self._store.commit(edit.messages())
        return True

    async def _ended(self, members: list[Member], seq: int) -> dict[str, Record]:
        """A job that has ended, for each of the consumers that know it."""
        places = (subjects.ended, subjects.dead)
        wanted = {place(member.ref, seq): member.ref for member in members for place in places}
        found = await self._store.link.last(list(wanted)) if wanted else []
        return {wanted[each.subject]: records.decode(each.data, each.seq) for each in found if each.data}

    async def stuck(self, limit: int) -> list[JobRecord]:
        """Leased jobs past their deadline."""
        now = await self._store.fresh()
        leases = self._store.mirror.queues.due[DueKind.LEASE]
        found = leases.peek(limit, lambda record: record.state is State.LEASED, now)
        return [self._shown(self._store.registry.members[record.ref], record) for record in found]

    async def find_jobs(self, channel: str, source: str, event_id: str) -> list[JobRecord]:
        """An event's jobs, live and terminal."""
        await self._store.fresh()
        seq = await self._seq(channel, source, event_id)
        if seq is None:
            return []
        members = self._store.registry.by_channel.get(channel, [])
        jobs = {member.ref: self._store.mirror.queues.job(member.ref, seq) for member in members}
        found = {ref: job for ref, job in jobs.items() if job is not None}
        if len(found) < len(members):
            found = await self._ended([each for each in members if each.ref not in found], seq) | found
        asked = (source, event_id)  # in the place of one that was never stored another may stand
        mine = {ref: record for ref, record in found.items() if (record.source, record.event) == asked}
        return [self._shown(member, mine[member.ref]) for member in members if member.ref in mine]

    async def job(self, channel: str, consumer: str, job_id: str) -> JobRecord | None:
        """One job, live or terminal."""
        await self._store.fresh()
        member, seq = self._store.registry.by_name.get((channel, consumer)), job_number(job_id)
        if member is None:
            return None
        await self._ingest.level(member)
        live = self._store.mirror.queues.job(member.ref, seq)
        found = live or (await self._ended([member], seq)).get(member.ref)
        return None if found is None else self._shown(member, found)

    def _shown(self, member: Member, record: Record) -> JobRecord:
        return shown(record, member.channel, member.name, self._store.registry.position(record.seq))


def _cancelled(record: Record, now: int) -> Record:
    return record.at_end(State.CANCELLED, now)
