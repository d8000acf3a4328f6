"""Edits: changes to one consumer's jobs that become one batch, with their counts and their fences.

A job that changes may have a record of its own, be a member of a lease, or wait in the log. Of the latter two
the batch also says that it is no longer there: in the record of the lease, or in the frontier.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import orjson

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.counts import added
from holdfast.backends.nats.state.frontiers import Frontier, Lease
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.lease_records import LeaseRecord, LeaseRecords
from holdfast.backends.nats.state.mirror import TOMBSTONE_SECONDS
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import MOST, MOST_BYTES, BatchMessage, Stale, anew, state
from holdfast.model.states import State

_GONE_SECONDS = 1
_CLOSING = (
    subjects.SHARDS + 4
)  # messages that may end a batch: counts, jobs that left dead, the key order, a fence


class BatchBuilder:
    """What is to become of some jobs of one consumer."""

    def __init__(self, store: NatsStore, leases: LeaseRecords, ref: str) -> None:
        self._store, self._leases, self._ref = store, leases, ref
        self._mirror, self._instance = store.mirror, store.instance
        self._generation = store.generation
        self._frontier: Frontier | None = None
        self._base = store.mirror.frontiers.get(ref)  # what is decided from here on must be about this one
        self._taken_out: defaultdict[int, list[StoredJob]] = defaultdict(list)
        self._moved: Counter[str] = Counter()
        self._clusters: Counter[str] = Counter()
        self._left: list[int] = []
        self._messages: list[BatchMessage] = []
        self._size = 0

    def has_room(self, messages: int, size: int = 0) -> bool:
        """Return whether a change of so many more messages fits into the batch; the first one always may."""
        return not self._messages or (
            len(self._messages) + len(self._taken_out) + messages + _CLOSING <= MOST
            and self._size + size <= MOST_BYTES
        )

    def create(self, record: StoredJob) -> None:
        """A new job. The frontier that moves in the same batch keeps it from being made twice."""
        self._add(state(subjects.job(record.ref, record.seq), record.encode()))
        self._moved[record.state] += 1

    def replace(self, old: StoredJob, new: StoredJob) -> None:
        """One live state after another."""
        new = self._leave(old, new)
        expect = old.revision if old.origin is None else 0
        self._add(state(subjects.job(new.ref, new.seq), new.encode(), expect))
        self._moved[new.state] += 1

    def _leave(self, old: StoredJob, new: StoredJob) -> StoredJob:
        """Note where a job has been; returns the job that it becomes."""
        match old.origin:
            case None:
                self._moved[old.state] -= 1
            case job_records.IN_LOG:
                self.move(self.frontier.with_ahead([old.seq]))
            case token:
                self._taken_out[token].append(old)
        return replace(new, origin=None)

    @property
    def frontier(self) -> Frontier:
        """The consumer's frontier, with what this batch changes of it. Raises `Stale`."""
        found = self._frontier or self._base
        if found is None:
            raise Stale(f"consumer {self._ref} is not known, or no more")
        return found

    @property
    def has_moved(self) -> bool:
        """Whether the batch changes the frontier."""
        return self._frontier is not None

    def move(self, frontier: Frontier) -> None:
        """Put another frontier in the place of the one that is known."""
        self._frontier = frontier

    @property
    def messages(self) -> list[BatchMessage]:
        """The messages so far, without those that are made when it is committed."""
        return self._messages

    def count(self, moved: Mapping[str, int]) -> None:
        """Move counts of jobs that have no record of their own."""
        self._moved.update(moved)

    def end(self, old: StoredJob, new: StoredJob) -> None:
        """A job's end: its record moves to where nobody mirrors it."""
        # The record goes first: if a dying server kept only part of the batch, the job is still live.
        new = self._leave(old, new)
        self._keep(new)
        if old.origin is None:
            self._add(state(subjects.job(old.ref, old.seq), b"", old.revision, TOMBSTONE_SECONDS))
        if new.state is not State.DEAD:
            self._moved[new.state] += 1

    def _keep(self, new: StoredJob) -> None:
        """The record of a job at its end: a dead letter's for good, with its event, another's for a while."""
        if new.state is State.DEAD:
            self._bury(new)
            return
        self._add(state(subjects.ended(new.ref, new.seq), new.encode(), ttl=self._store.history))
        for kept in filter(None, (new.copy, new.patch)):
            self._add(state(kept, b"", ttl=_GONE_SECONDS))

    def _bury(self, new: StoredJob) -> None:
        letter = replace(new, cluster=new.fingerprint)
        self._add(
            anew(subjects.dead(new.ref, new.seq), letter.encode())
        )  # it may have left the dead just now
        self._add(anew(_entry(letter), b"%d" % (letter.ended or 0)))
        self._move_dead(letter, 1)

    def purge(self, old: StoredJob, new: StoredJob) -> None:
        """A dead letter that is given up. `old.revision` is that of its record."""
        self._keep(new)
        self._leave_the_dead(old, new)

    def revive(self, old: StoredJob, new: StoredJob) -> None:
        """A dead letter that is live again. `old.revision` is that of its record."""
        self._add(state(subjects.job(new.ref, new.seq), new.encode()))
        self._leave_the_dead(old, new)

    def _leave_the_dead(self, old: StoredJob, new: StoredJob) -> None:
        self._add(state(subjects.dead(old.ref, old.seq), b"", old.revision, _GONE_SECONDS))
        if old.cluster is not None:
            self._add(state(_entry(old), b"", ttl=_GONE_SECONDS))
        if old.patch and new.patch != old.patch:
            self._add(state(old.patch, b"", ttl=_GONE_SECONDS))
        self._left.append(old.seq)
        self._move_dead(old, -1)
        self._moved[new.state] += 1

    def _move_dead(self, letter: StoredJob, by: int) -> None:
        self._moved[State.DEAD] += by
        self._moved[f"dead:{letter.reason}"] += by
        if letter.cluster is not None:
            self._clusters[letter.cluster] += by

    def correct(self, counts: Mapping[str, int], clusters: Mapping[str, int]) -> None:
        """Move counts of which a recount has shown that they are wrong by so much."""
        self._moved.update(counts)
        self._clusters.update(clusters)

    def raise_key_order(self, revision: int) -> None:
        """Some job becomes ready again: refuse claims that did not see it."""
        self._add(state(subjects.key_order(self._ref), b"", revision))

    def expect_key_order(self, revision: int) -> None:
        """Refuse the batch if some job became ready again since. Claims do not refuse each other by it."""
        heed = state(subjects.key_order_check(self._ref), b"", revision)
        self._add(heed._replace(headers=heed.headers | {subjects.EXPECT_OF: subjects.key_order(self._ref)}))

    def also(self, messages: Sequence[BatchMessage]) -> None:
        """Messages that belong to the same step: an event's copy, keys of foreign events."""
        for message in messages:
            self._add(message)

    def _add(self, message: BatchMessage) -> None:
        self._messages.append(message)
        self._size += len(message.data)

    async def commit(self) -> None:
        """Commit the batch, if there is something in it. Raises `Stale`.

        Who left a lease or the log is told behind the records of what they become: if a dying server kept
        only part of the batch, a job may be there twice, and none is lost. The counts stand at the end.
        """
        left = [(lease, record) for lease, record in self._left_leases()]
        messages = [*self._messages, *self._departed()]
        first = len(messages)
        messages += [record.message(self._ref, lease) for lease, record in left]
        if self._frontier is not None:
            messages.append(self._frontier.message(self._ref))
        messages += self._counted()
        if messages:
            last = await self._store.commit(messages, self._generation)
            revision = last - len(messages) + 1 + first
            for number, (lease, record) in enumerate(left):
                self._leases.adopt(self._ref, lease, record, revision + number)

    def _left_leases(self) -> Iterator[tuple[Lease, LeaseRecord]]:
        frontier = self._mirror.frontier(self._ref) if self._taken_out else None
        for token, jobs in self._taken_out.items():
            lease = frontier.lease(token) if frontier is not None else None
            if lease is None:
                raise Stale(f"the lease {token} is gone")
            record = self._leases.known(self._ref, lease)
            if any(job.revision != record.revision for job in jobs):
                raise Stale(f"something happened to the lease {token} meanwhile")
            yield lease, record.with_out(job.seq for job in jobs)

    def _departed(self) -> Iterator[BatchMessage]:
        if self._left:
            headers = {subjects.TTL: f"{TOMBSTONE_SECONDS}s"}
            yield BatchMessage(subjects.left(self._ref), orjson.dumps(self._left), headers)

    def _counted(self) -> Iterator[BatchMessage]:
        shards: defaultdict[int, Counter[str]] = defaultdict(Counter)
        for fingerprint, number in self._clusters.items():
            shards[subjects.shard(fingerprint)][fingerprint] = number
        for shard, moved in sorted(shards.items()):
            if any(moved.values()):
                yield added(self._mirror, subjects.cluster(self._ref, self._instance, shard), moved)
        if any(self._moved.values()):
            yield added(self._mirror, subjects.count(self._ref, self._instance), self._moved)


def _entry(letter: StoredJob) -> str:
    return subjects.index(letter.ref, letter.reason or "", letter.cluster, letter.seq)
