"""Jobs: one event for one consumer, wherever it is: a record of its own, a lease, the log, or history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.entries import Entries
from holdfast.backends.nats.state.frontiers import Lease
from holdfast.backends.nats.state.job_records import IN_LOG, StoredJob
from holdfast.backends.nats.state.lease_records import LeaseRecords, decode, lease_patterns
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.state.take_up import TakeUp, is_special
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.parser import StoredMessage
from holdfast.model.states import State

_FILTERS = 400
"""Patterns that are looked for in one request."""


class Jobs:
    """Finds jobs. What has no record of its own is returned as the record that it would have."""

    def __init__(self, store: NatsStore, entries: Entries, leases: LeaseRecords, take_up: TakeUp) -> None:
        self._store, self._entries, self._leases, self._take_up = store, entries, leases, take_up

    async def live(self, member: Member, seqs: Iterable[int]) -> dict[int, StoredJob]:
        """Return the live ones of some jobs, as the mirror has them. Raises `Stale`."""
        frontier, queues = self._store.mirror.frontier(member.ref), self._store.mirror.queues
        found, leased, waiting = dict[int, StoredJob](), dict[int, Lease](), list[int]()
        for seq in seqs:
            record = queues.job(member.ref, seq)
            if record is not None:
                found[seq] = record
            elif seq > frontier.at:
                if seq not in frontier.ahead:
                    waiting.append(seq)
            elif (lease := frontier.holder(seq)) is not None:
                leased[seq] = lease
        unknown = {
            each.token: each for each in leased.values() if not self._leases.is_known(member.ref, each)
        }
        await self._leases.read((member.ref, each) for each in unknown.values())
        known = {each.token: self._leases.known(member.ref, each) for each in leased.values()}
        out = [seq for seq, lease in leased.items() if seq in known[lease.token].out]
        if out:  # the mirror may not know yet what became of those that have left their lease
            await self._store.mirror.sync(member.ref)
            records = ((seq, self._store.mirror.queues.job(member.ref, seq)) for seq in out)
            found |= {seq: record for seq, record in records if record is not None}
        leased = {seq: lease for seq, lease in leased.items() if known[lease.token].is_open(seq)}
        messages = await self._entries.at(member.channel, [*leased, *waiting]) if leased or waiting else {}
        for seq, lease in leased.items():
            of = known[lease.token]
            job = self._leased(member, seq, lease, of.deadline(lease, seq), messages.get(seq))
            found[seq] = replace(job, revision=of.revision)
        entries = [messages[seq] for seq in waiting if seq in messages]
        outcomes = await self._entries.outcomes(member.channel, entries)
        marked = await self._take_up.marked(
            member, frontier, [each.seq for each in entries if is_special(each)]
        )
        for each in entries:
            if each.seq not in marked and outcomes.get(each.headers.get(subjects.PUBLISH), True):
                found[each.seq] = replace(self._take_up.record(member, each), origin=IN_LOG)
        return found

    def _leased(
        self, member: Member, seq: int, lease: Lease, deadline: int, message: StoredMessage | None
    ) -> StoredJob:
        if message is None:  # its event was removed by another client
            record = StoredJob(member.ref, seq, State.READY, "", "", lease.deadline, lease.deadline)
        else:
            record = self._take_up.record(member, message)
        return replace(
            record,
            state=State.LEASED,
            attempts=1,
            token=lease.token,
            lease=deadline,
            worker=lease.worker,
            origin=lease.token,
        )

    async def ended(self, members: Sequence[Member], seq: int) -> dict[str, StoredJob]:
        """Return a job that has ended, for each of the consumers that know it."""
        places = (subjects.ended, subjects.dead)
        wanted = {place(member.ref, seq): member.ref for member in members for place in places}
        found = await self._store.connection.exact(list(wanted)) if wanted else []
        ended = {wanted[each.subject]: job_records.decode(each.data, each.seq) for each in found if each.data}
        return await self._completed([each for each in members if each.ref not in ended], seq) | ended

    async def _completed(self, members: Sequence[Member], seq: int) -> dict[str, StoredJob]:
        """Return a job that ended in a lease, of which nothing else tells."""
        if not members or seq < 1:
            return {}
        last = int((await self._store.info())["state"]["last_seq"])
        patterns = [pattern for member in members for pattern in lease_patterns(member.ref, seq, last)]
        members_by_ref, found = {member.ref: member for member in members}, dict[str, StoredJob]()
        for at in range(0, len(patterns), _FILTERS):
            for message in await self._store.connection.last(patterns[at : at + _FILTERS]):
                ref, token = message.subject.split(".")[2], int(message.subject.rpartition(".")[2])
                _, record = decode(message.data, message.seq)
                if seq in record.ends:
                    job = await self._ended_in(members_by_ref[ref], seq)
                    done = record.state is State.DONE
                    found[ref] = replace(
                        job.at_end(record.state, record.ends[seq]),
                        attempts=int(done),
                        token=token if done else 0,
                    )
        return found

    async def _ended_in(self, member: Member, seq: int) -> StoredJob:
        messages = await self._entries.at(member.channel, [seq])
        if seq in messages:
            return self._take_up.record(member, messages[seq])
        return StoredJob(member.ref, seq, State.DONE, "", "", 0, 0)  # its event was trimmed
