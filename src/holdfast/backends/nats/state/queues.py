"""Queues: live jobs in memory, by turn and by deadline.

A record is decoded when somebody looks for it: most processes need few of them, and many a record is replaced
before anybody does.

Entries of a heap are never removed, only passed over: one counts while the job's record is still the one that
it was made from. So a change costs one push, and a look at what is due costs what is due.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.model.decide import DueKind
from holdfast.model.states import State

JobKey = tuple[str, int]
_Entry = tuple[tuple[int, ...], str, int, int]
_SLACK = 1_000
_EVER = 1 << 62


class Heap:
    """Jobs by some key, lowest first."""

    def __init__(self, jobs: dict[JobKey, StoredJob]) -> None:
        self._jobs, self._entries = jobs, list[_Entry]()

    def push(self, key: tuple[int, ...], record: StoredJob) -> None:
        heappush(self._entries, (key, record.ref, record.seq, record.revision))
        if len(self._entries) > 4 * len(self._jobs) + _SLACK:
            self._entries = [entry for entry in self._entries if self._current(entry) is not None]
            heapify(self._entries)

    def take(self, limit: int, wanted: Callable[[StoredJob], bool]) -> Iterator[StoredJob]:
        """Take out up to `limit` wanted jobs; what is not wanted is passed over for good."""
        taken = 0
        while self._entries and taken < limit:
            record = self._pop()
            if record is not None and wanted(record):
                taken += 1
                yield record

    def peek(self, limit: int, wanted: Callable[[StoredJob], bool], until: int) -> list[StoredJob]:
        """Return the first wanted jobs whose key is not above `until`; they stay."""
        kept = list[tuple[tuple[int, ...], StoredJob]]()
        while self._entries and len(kept) < limit:
            key = self._entries[0][0]
            if key[0] > until and self._current(self._entries[0]) is not None:
                break
            record = self._pop()
            if record is not None and wanted(record) and key[0] <= until:
                kept.append((key, record))
        for key, record in kept:
            self.push(key, record)
        return [record for _, record in kept]

    def first(self, wanted: Callable[[StoredJob], bool]) -> StoredJob | None:
        found = self.peek(1, wanted, _EVER)
        return found[0] if found else None

    def _pop(self) -> StoredJob | None:
        """Take the first one, if it still counts; once, also where it was pushed more than once."""
        entry = heappop(self._entries)
        while self._entries and self._entries[0] == entry:
            heappop(self._entries)
        return self._current(entry)

    def _current(self, entry: _Entry) -> StoredJob | None:
        record = self._jobs.get((entry[1], entry[2]))
        return record if record is not None and record.revision == entry[3] else None


class KeyOrder:
    """Ordered consumers: for each key its live jobs, in the order of the log."""

    def __init__(self, jobs: dict[JobKey, StoredJob]) -> None:
        self._jobs = jobs
        self._order: dict[tuple[str, str], list[int]] = {}

    def join(self, record: StoredJob) -> None:
        if record.lane is not None:
            heappush(self._order.setdefault((record.ref, record.lane), []), record.seq)

    def head(self, ref: str, lane: str) -> StoredJob | None:
        """Return the one job of a key that may run."""
        seqs = self._order.get((ref, lane), [])
        while seqs:
            record = self._jobs.get((ref, seqs[0]))
            if record is not None and record.lane == lane:
                return record
            heappop(seqs)
        self._order.pop((ref, lane), None)
        return None

    def forget(self, ref: str) -> None:
        for place in [each for each in self._order if each[0] == ref]:
            del self._order[place]

    def is_free(self, record: StoredJob) -> bool:
        if record.lane is None:
            return True
        head = self.head(record.ref, record.lane)
        return head is not None and head.seq == record.seq


class Queues:
    """Every live job, and the orders in which they are looked for."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, StoredJob] = {}
        self._unread: dict[str, dict[int, tuple[int, bytes]]] = {}
        self._due = {kind: Heap(self._jobs) for kind in DueKind}
        self._order = KeyOrder(self._jobs)
        self._ready: dict[str, Heap] = {}
        self._scheduled: dict[str, Heap] = {}

    @property
    def jobs(self) -> dict[JobKey, StoredJob]:
        """All of them."""
        self._read_all()
        return self._jobs

    @property
    def due(self) -> dict[DueKind, Heap]:
        """All of them by deadline."""
        self._read_all()
        return self._due

    def job(self, ref: str, seq: int) -> StoredJob | None:
        """Return one job; None where it is not live."""
        if unread := self._unread.get(ref, {}).pop(seq, None):
            self._put(job_records.decode(unread[1], unread[0]))
        return self._jobs.get((ref, seq))

    def put(self, ref: str, seq: int, revision: int, data: bytes) -> None:
        """A job as it is now; an older record of it counts no more."""
        unread = self._unread.setdefault(ref, {})
        if seq not in unread or unread[seq][0] < revision:
            unread[seq] = revision, data

    def _read(self, ref: str) -> None:
        for revision, data in self._unread.pop(ref, {}).values():
            self._put(job_records.decode(data, revision))

    def _read_all(self) -> None:
        for ref in list(self._unread):
            self._read(ref)

    def _put(self, record: StoredJob) -> None:
        place = record.ref, record.seq
        old = self._jobs.get(place)
        if old is not None and old.revision >= record.revision:
            return
        self._jobs[place] = record
        if old is None:
            self._order.join(record)
        match record.state:
            case State.READY:
                self._offer(record)
            case State.SCHEDULED:
                self._due[DueKind.SCHEDULE].push((record.due,), record)
                self._scheduled.setdefault(record.ref, Heap(self._jobs)).push((record.due,), record)
            case State.LEASED:
                self._due[DueKind.LEASE].push((record.lease or 0,), record)
        if record.expires is not None and record.state is not State.LEASED:
            self._due[DueKind.EXPIRY].push((record.expires,), record)

    def drop(self, ref: str, seq: int, revision: int) -> None:
        """A job that is live no more; the next one of its lane may run."""
        unread, record = self._unread.get(ref, {}), self._jobs.get((ref, seq))
        if seq in unread and unread[seq][0] < revision:
            del unread[seq]
        if record is None or record.revision > revision:
            return
        del self._jobs[ref, seq]
        if record.lane is not None:
            head = self._order.head(ref, record.lane)
            if head is not None and head.state is State.READY:
                self._offer(head)

    def forget(self, ref: str) -> None:
        """A consumer that is gone."""
        self._unread.pop(ref, None)
        for place in [each for each in self._jobs if each[0] == ref]:
            del self._jobs[place]
        for heaps in (self._ready, self._scheduled):
            heaps.pop(ref, None)
        self._order.forget(ref)

    def _offer(self, record: StoredJob) -> None:
        if self._order.is_free(record):
            self._ready.setdefault(record.ref, Heap(self._jobs)).push(record.rank, record)

    def take_ready(self, ref: str, limit: int, now: int, rivals: int = 0, lost: int = 0) -> list[StoredJob]:
        """Take the next jobs of a consumer, any of those that so many rivals would take as well.

        After lost races it takes a share where there are few. What has expired waits for the lifecycle.
        """
        self._read(ref)
        heap = self._ready.get(ref)
        if heap is None:
            return []
        found = list(heap.take(limit * (1 + rivals), self._claimable(now)))
        share = min(limit, math.ceil(len(found) / (1 + lost)))
        first = random.randint(0, len(found) - share)  # noqa: S311 - it only keeps them apart
        self.give_back(found[:first] + found[first + share :])
        return found[first : first + share]

    def has_ready(self, ref: str, limit: int, now: int) -> bool:
        """Return whether so many would be taken."""
        self._read(ref)
        heap = self._ready.get(ref)
        return heap is not None and len(heap.peek(limit, self._claimable(now), _EVER)) >= limit

    def _claimable(self, now: int) -> Callable[[StoredJob], bool]:
        def claimable(record: StoredJob) -> bool:
            unexpired = record.expires is None or record.expires > now
            return record.state is State.READY and unexpired and self._order.is_free(record)

        return claimable

    def waiting(self, ref: str, limit: int) -> list[StoredJob]:
        """Return some of a consumer's jobs that are not leased, about the oldest of them."""
        self._read(ref)
        jobs = (job for (owner, _), job in self._jobs.items() if owner == ref)
        return list(islice((job for job in jobs if job.state is not State.LEASED), max(limit, 0)))

    def give_back(self, records: list[StoredJob]) -> None:
        """What was taken and not leased; those that have changed since count no more."""
        for record in records:
            self._ready.setdefault(record.ref, Heap(self._jobs)).push(record.rank, record)

    def next_due(self, ref: str) -> int | None:
        self._read(ref)
        heap = self._scheduled.get(ref)
        found = None if heap is None else heap.first(lambda record: record.state is State.SCHEDULED)
        return None if found is None else found.due

    def states(self, ref: str) -> Counter[str]:
        """Return how many live jobs of a consumer there are, counted one by one."""
        return Counter(job.state for (owner, _), job in self.jobs.items() if owner == ref)

    def ready_times(self) -> dict[str, tuple[int, int]]:
        """Return when the oldest and the newest ready job of each consumer were due."""
        found: dict[str, tuple[int, int]] = {}
        for (ref, _), job in self.jobs.items():
            if job.state is State.READY:
                oldest, newest = found.get(ref, (job.due, job.due))
                found[ref] = min(oldest, job.due), max(newest, job.due)
        return found

    def oldest_ready(self, ref: str) -> int | None:
        ready = (
            job.due for (owner, _), job in self.jobs.items() if owner == ref and job.state is State.READY
        )
        return min(ready, default=None)
