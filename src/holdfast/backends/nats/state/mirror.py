"""The mirror: the store's state in memory, brought up to date by reading on from where it was.

It only proposes. Whatever is done with it is committed against the revisions that it was based on, so that a
mirror that has fallen behind costs a repetition and never a wrong step.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from holdfast.backends.nats.state import registry
from holdfast.backends.nats.state.queues import Queues
from holdfast.backends.nats.state.registry import Registry
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.parser import subject_and_sequence

TOMBSTONE_SECONDS = 600
"""How long the empty message stays that tells that a job is live no more."""
_TRUSTED = TOMBSTONE_SECONDS / 2
_PAGE = 1000
_OF_CONSUMERS = {"job", "cursor", "count", "cluster", "lane"}


@dataclass(frozen=True, slots=True)
class IngestCursor:
    """How far the log has become jobs: up to `at`. Until `target` it is the past, from `since` on."""

    at: int
    target: int | None = None
    since: int | None = None
    revision: int = 0

    def encode(self) -> bytes:
        return orjson.dumps([self.at, self.target, self.since])


class View:
    """The state as of some sequence."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.queues = Queues()
        self.cursors: dict[str, IngestCursor] = {}
        self.counts: dict[str, dict[str, dict[str, int]]] = {}
        self.clusters: dict[str, dict[str, dict[str, int]]] = {}
        self.revisions: dict[str, int] = {}
        self.ours: dict[str, int] = {}
        """The revisions of cursors that this process has moved."""
        self.known = 0

    def apply(self, subject: str, seq: int, data: bytes) -> None:
        """Take over one message, unless it is older than what is known of its subject."""
        _, _, kind, *rest = subject.split(".")
        if self.registry.removing and kind in _OF_CONSUMERS and rest[0] in self.registry.removing:
            return
        if kind == "job":
            if data:
                self.queues.put(rest[0], int(rest[1]), seq, data)
            else:
                self.queues.drop(rest[0], int(rest[1]), seq)
            return
        if seq <= self.revisions.get(subject, 0):
            return
        self.revisions[subject] = seq
        match kind:
            case "registry":
                self.registry = registry.decode(data, seq)
                self._forget()
            case "cursor" if data:
                at, target, since = orjson.loads(data)
                self.cursors[rest[0]] = IngestCursor(at, target, since, seq)
            case "count" | "cluster":
                counted = (self.counts if kind == "count" else self.clusters).setdefault(rest[0], {})
                if data:
                    counted[subject] = orjson.loads(data)
                else:
                    counted.pop(subject, None)

    def _forget(self) -> None:
        """Consumers that are gone, or are about to be, have nothing here."""
        for ref in (self.cursors.keys() | self.counts.keys()) - self.registry.members.keys():
            self.queues.forget(ref)
            for known in (self.cursors, self.counts, self.clusters):
                known.pop(ref, None)
            for subject in [each for each in self.revisions if _is_of(ref, each)]:
                del self.revisions[subject]
                self.ours.pop(subject, None)


def _is_of(ref: str, subject: str) -> bool:
    _, _, kind, *rest = subject.split(".")
    return kind in _OF_CONSUMERS and rest[0] == ref


def _total(counted: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for numbers in counted.values():
        total.update(numbers)
    return total


class Mirror:
    """One process's copy of `HF.S.>`."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._syncing = asyncio.Lock()
        self._view = View()
        self._synced, self._trusted = time.monotonic(), True
        self._asked = self._served = 0

    @property
    def registry(self) -> Registry:
        return self._view.registry

    @property
    def queues(self) -> Queues:
        return self._view.queues

    @property
    def cursors(self) -> dict[str, IngestCursor]:
        return self._view.cursors

    def revision(self, subject: str) -> int:
        """Return the sequence of a subject's only message, 0 where there is none."""
        return self._view.revisions.get(subject, 0)

    def is_ours(self, cursor: str) -> bool:
        """Return whether this process was the last one to move a cursor."""
        return self._view.ours.get(cursor) == self.revision(cursor)

    def counts(self, ref: str) -> Counter[str]:
        """Return jobs by state, and the dead by reason, as all processes have moved them."""
        return _total(self._view.counts.get(ref, {}))

    def clusters(self, ref: str) -> Counter[str]:
        """Return the dead by fingerprint."""
        return _total(self._view.clusters.get(ref, {}))

    def counts_in(self, subject: str) -> Mapping[str, int]:
        """Return the counts of one message."""
        kind, ref = subject.split(".")[2:4]
        counted = self._view.counts if kind == "count" else self._view.clusters
        return counted.get(ref, {}).get(subject, {})

    def count_revisions(self, ref: str) -> dict[str, int]:
        """Return the messages with a consumer's counts by state, each with its revision."""
        return {subject: self.revision(subject) for subject in self._view.counts.get(ref, {})}

    def count_subjects_of(self, instance: str) -> dict[str, list[str]]:
        """Return the messages with counts that one process has written, by consumer."""
        return self._count_subjects(lambda subject: subjects.counter(subject) == instance)

    def count_subjects_before(self, seq: int) -> dict[str, list[str]]:
        """Return those that some process wrote before a sequence, and not since."""
        return self._count_subjects(lambda each: subjects.folded(each) != each and self.revision(each) < seq)

    def _count_subjects(self, wanted: Callable[[str], bool]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for known in (self._view.counts, self._view.clusters):
            for ref, counted in known.items():
                chosen = [subject for subject in counted if wanted(subject)]
                if chosen:
                    found.setdefault(ref, []).extend(chosen)
        return found

    async def sync(self) -> None:
        """Learn everything that was committed before this call. Calls that wait together share a reading."""
        self._asked += 1
        mine = self._asked
        async with self._syncing:
            if self._served >= mine:
                return
            covered = self._asked
            # Tombstones may have come and gone while nobody looked.
            recent = time.monotonic() - self._synced < _TRUSTED
            await self._read_on(self._view if recent and self._trusted else View())
            self._served = covered

    async def sync_registry(self) -> None:
        """Learn of the registry only: a publisher need not know of jobs."""
        query = {"seq": self.registry.revision + 1, "next_by_subj": subjects.REGISTRY, "batch": 1}
        for message in (await self._connection.read(query))[0]:
            self._view.apply(message.subject, message.seq, message.data)

    async def reload(self) -> None:
        """Learn everything anew."""
        async with self._syncing:
            await self._read_on(View())

    async def distrust(self) -> None:
        """The server may be another one: learn of its registry now, of everything else when it is needed."""
        async with self._syncing:
            self._trusted = False
            found, _ = await self._connection.read({"multi_last": [subjects.REGISTRY], "batch": 1})
            view = self._view
            view.revisions.pop(subjects.REGISTRY, None)
            view.registry = Registry()
            for message in found:
                view.apply(message.subject, message.seq, message.data)

    async def _read_on(self, view: View) -> None:
        """Read until there is no more. A new view takes the old one's place when it is whole."""
        began, pending = time.monotonic(), 1
        while pending:
            query = {"seq": view.known + 1, "next_by_subj": subjects.STATE, "batch": _PAGE}
            found, pending = await self._connection.read_raw(query, subjects.STREAM)
            for headers, data in found:
                subject, seq = subject_and_sequence(headers)
                view.apply(subject, seq, data)
                view.known = max(view.known, seq)
        self._view, self._synced, self._trusted = view, began, True

    def adopt(self, messages: Sequence[BatchMessage], last: int) -> None:
        """Take over a batch of our own, so that it need not be read back."""
        view, first = self._view, last - len(messages) + 1
        for seq, message in enumerate(messages, start=first):
            if message.subject.startswith(subjects.STATE_PREFIX):
                view.apply(message.subject, seq, message.data)
            if message.subject.startswith(subjects.CURSORS):
                view.ours[message.subject] = seq
        if first == view.known + 1:  # nobody wrote in between
            view.known = last
