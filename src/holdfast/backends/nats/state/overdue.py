"""Overdue: members of leases whose deadline has passed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.backends.nats.state.frontiers import Lease
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.jobs import Jobs
from holdfast.backends.nats.state.lease_records import LeaseRecords
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire.batches import Stale
from holdfast.model.errors import Overloaded


class _Member(NamedTuple):
    """An event of a lease that is overdue; the one that has been for longest sorts first."""

    deadline: int
    seq: int
    ref: str


class Overdue:
    """Looks through the leases of all consumers, and reads the records of those alone that seem overdue."""

    def __init__(self, store: NatsStore, leases: LeaseRecords, jobs: Jobs) -> None:
        self._store, self._leases, self._jobs = store, leases, jobs

    async def jobs(self, limit: int, now: int) -> list[StoredJob]:
        """Return the first `limit` overdue members of leases."""
        await self._leases.read(self._late(now))
        found = [
            _Member(record.deadline(lease, seq), seq, ref)
            for ref, lease in self._late(now)
            for record in [self._leases.known(ref, lease)]
            for seq in record.open(lease)
            if record.deadline(lease, seq) <= now
        ]
        found.sort()
        wanted: dict[str, list[int]] = {}
        for each in found[:limit]:
            wanted.setdefault(each.ref, []).append(each.seq)
        records = list[StoredJob]()
        for ref, seqs in wanted.items():
            member = self._store.registry.members.get(ref)
            with suppress(Stale):  # a consumer that is gone
                live = {} if member is None else await self._jobs.live(member, seqs)
                records += [live[seq] for seq in seqs if seq in live]
        return sorted(records, key=lambda record: (record.lease or 0, record.seq))

    def _late(self, now: int) -> Iterator[tuple[str, Lease]]:
        for ref, frontier in list(self._store.mirror.frontiers.items()):
            if ref not in self._store.registry.members:
                continue
            for lease in frontier.leases:
                record = self._leases.known(ref, lease)
                if lease.deadline <= now and record.left(lease) and record.first_deadline(lease) <= now:
                    yield ref, lease

    async def tidy(self, now: int) -> None:
        """Take leases that ended off the lists of consumers that nobody claims for any more."""
        for ref, frontier in list(self._store.mirror.frontiers.items()):
            known = ((lease, self._leases.known(ref, lease)) for lease in frontier.leases)
            if ref in self._store.registry.members and any(
                lease.deadline <= now and record.left(lease) == 0 for lease, record in known
            ):
                with suppress(Stale, Overloaded):
                    await self._store.commit([self._leases.tidied(ref, frontier).message(ref)])
