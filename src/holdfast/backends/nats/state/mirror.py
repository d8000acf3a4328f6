"""The mirror: the store's state in memory, brought up to date by reading on from where it was.

It holds the registry, and of consumers what is in hand: frontiers with their leases, jobs of their own, and
counts. A consumer is read when it is first asked for; whoever looks at all of them reads all.

It only proposes. Whatever is done with it is committed against the revisions that it was based on, so that a
mirror that has fallen behind costs a repetition and never a wrong step.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

import orjson

from holdfast.backends.nats.state import frontiers, registry
from holdfast.backends.nats.state.frontiers import Frontier
from holdfast.backends.nats.state.queues import Queues
from holdfast.backends.nats.state.registry import Registry
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage, Stale
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.parser import Raw, subject_and_sequence

TOMBSTONE_SECONDS = 600
"""How long the empty message stays that tells that a job is live no more."""
_TRUSTED = TOMBSTONE_SECONDS / 2
_PAGE = 1000
_ALL = ""
_NEVER = float("-inf")
_Message = tuple[str, int, bytes]
"""A subject, a sequence and the data."""


class View:
    """The state as of some sequence: `known` of everything that was read, or of single consumers."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.queues = Queues()
        self.frontiers: dict[str, Frontier] = {}
        self.counts: dict[str, dict[str, dict[str, int]]] = {}
        self.clusters: dict[str, dict[str, dict[str, int]]] = {}
        self.revisions: dict[str, int] = {}
        self.known: defaultdict[str, int] = defaultdict(int)
        self.read_at: defaultdict[str, float] = defaultdict(lambda: _NEVER)

    def place(self, ref: str) -> tuple[int, float]:
        """Return up to which sequence a consumer is known, and since when."""
        places = _ALL, ref
        return max(self.known[each] for each in places), max(self.read_at[each] for each in places)

    def take_over(self, place: str, found: Sequence[_Message], known: int, began: float) -> None:
        """Take over all that was read of a consumer, or of everything, at once."""
        for message in found:
            self.apply(*message)
        self.known[place] = max(known, self.known[place])
        self.read_at[place] = began

    def apply(self, subject: str, seq: int, data: bytes) -> None:
        """Take over one message, unless it is older than what is known of its subject."""
        _, _, kind, *rest = subject.split(".")
        if kind == "c":
            ref, kind, *rest = rest
            if ref in self.registry.removing:
                return
            if kind == "job":
                if data:
                    self.queues.put(ref, int(rest[0]), seq, data)
                else:
                    self.queues.drop(ref, int(rest[0]), seq)
                return
        if seq <= self.revisions.get(subject, 0):
            return
        self.revisions[subject] = seq
        match kind:
            case "registry":
                self.registry = registry.decode(data, seq)
                for ref in self.registry.removing:
                    self.forget(ref)
                for ref in (self.frontiers.keys() | self.counts.keys()) - self.registry.members.keys():
                    if int(ref) <= self.registry.numbered:
                        self.forget(ref)
            case "frontier" if data:
                self.frontiers[ref] = frontiers.decode(data, seq, self.frontiers.get(ref))
            case "frontier":
                self.frontiers.pop(ref, None)
            case "count" | "cluster":
                counted = (self.counts if kind == "count" else self.clusters).setdefault(ref, {})
                if data:
                    counted[subject] = orjson.loads(data)
                else:
                    counted.pop(subject, None)

    def forget(self, ref: str) -> None:
        """Drop all of a consumer: it is gone, or is read anew."""
        self.queues.forget(ref)
        for known in (self.counts, self.clusters):
            for subject in known.pop(ref, {}):
                self.revisions.pop(subject, None)
        self.frontiers.pop(ref, None)
        for subject in (subjects.frontier(ref), subjects.key_order(ref)):
            self.revisions.pop(subject, None)
        self.known.pop(ref, None)


def _total(counted: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for numbers in counted.values():
        total.update(numbers)
    return total


class _Turn:
    """Calls that wait together share a reading: who asked for it, by number, whom it has served, and what was
    read into."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.asked = self.served = 0
        self.view: View | None = None


class Mirror:
    """One process's copy of `HF.S.>`, or of those consumers that it works for."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._view = View()
        self._turns: defaultdict[str, _Turn] = defaultdict(_Turn)

    @property
    def registry(self) -> Registry:
        return self._view.registry

    @property
    def queues(self) -> Queues:
        return self._view.queues

    @property
    def frontiers(self) -> Mapping[str, Frontier]:
        return self._view.frontiers

    def frontier(self, ref: str) -> Frontier:
        """Return a consumer's frontier. Raises `Stale` where it is not known."""
        found = self._view.frontiers.get(ref)
        if found is None:
            raise Stale(f"consumer {ref} is not known, or no more")
        return found

    def revision(self, subject: str) -> int:
        """Return the sequence of a subject's only message, 0 where there is none."""
        return self._view.revisions.get(subject, 0)

    def counts(self, ref: str) -> Counter[str]:
        """Return jobs by state, and the dead by reason, as all processes have moved them."""
        return _total(self._view.counts.get(ref, {}))

    def clusters(self, ref: str) -> Counter[str]:
        """Return the dead by fingerprint."""
        return _total(self._view.clusters.get(ref, {}))

    def counts_in(self, subject: str) -> Mapping[str, int]:
        """Return the counts of one message."""
        ref, kind = subject.split(".")[3:5]
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

    async def sync(self, ref: str = _ALL) -> None:
        """Learn what was committed before this call: of one consumer, or of everything."""
        turn = self._turns[ref]
        turn.asked += 1
        mine = turn.asked
        async with turn.lock:
            # The mirror may have begun anew meanwhile: then what was read is in a view that counts no more.
            while turn.served < mine or turn.view is not self._view:
                covered = turn.asked
                turn.view = await (self._read_on(ref) if ref else self._read_all())
                turn.served = covered

    async def sync_registry(self) -> None:
        """Learn of the registry only: a publisher need not know of jobs."""
        query = {"seq": self.registry.revision + 1, "multi_last": [subjects.REGISTRY], "batch": 1}
        for message in (await self._connection.read(query))[0]:
            self._view.apply(message.subject, message.seq, message.data)

    async def reload(self) -> None:
        """Learn of the registry now, and of everything else anew when it is asked for."""
        found, _ = await self._connection.read({"multi_last": [subjects.REGISTRY], "batch": 1})
        view = View()
        for message in found:
            view.apply(message.subject, message.seq, message.data)
        self._view = view

    async def _read_all(self) -> View:
        """Read until there is no more. A new view takes the old one's place when it is whole."""
        began, before = time.monotonic(), self._view
        # Tombstones may have come and gone while nobody looked.
        view = View() if began - before.read_at[_ALL] > _TRUSTED else before
        found, known = await self._read(subjects.STATE, view.known[_ALL])
        view.take_over(_ALL, found, known, began)
        if self._view is before:
            self._view = view
        return view

    async def _read_on(self, ref: str) -> View:
        began, view = time.monotonic(), self._view
        known, since = view.place(ref)
        anew = began - since > _TRUSTED
        found, known = await self._read(subjects.state_of(ref), 0 if anew else known)
        if anew:
            view.forget(ref)
        view.take_over(ref, found, known, began)
        return view

    async def _read(self, wanted: str, known: int) -> tuple[list[_Message], int]:
        """Return what follows a sequence, and up to where that is known. Only the whole of it is how things
        were at some moment: whatever was replaced while it was read stands on a later page.

        The server walks through all that follows, also through what is not wanted: so what was seen to be
        there before is not asked for again.
        """
        pending, found, seen = 1, list[_Message](), self._connection.seen
        while pending:
            query = {"seq": known + 1, "next_by_subj": wanted, "batch": _PAGE}
            page, pending = await self._connection.read_raw(query, subjects.STREAM)
            found += map(_located, page)
            known = found[-1][1] if found else known
        return found, max(known, seen)

    def is_recent(self, ref: str) -> bool:
        """Return whether a consumer was looked at lately."""
        return time.monotonic() - self._view.place(ref)[1] < _TRUSTED

    def adopt(self, messages: Sequence[BatchMessage], last: int) -> None:
        """Take over a batch of our own, so that it need not be read back."""
        view, first = self._view, last - len(messages) + 1
        for seq, message in enumerate(messages, start=first):
            if message.subject.startswith(subjects.STATE_PREFIX):
                view.apply(message.subject, seq, message.data)
        if first == view.known[_ALL] + 1:  # nobody wrote in between
            view.known[_ALL] = last


def _located(message: Raw) -> _Message:
    return *subject_and_sequence(message[0]), message[1]
