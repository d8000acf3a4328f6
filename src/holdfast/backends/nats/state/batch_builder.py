"""Edits: changes to one consumer's jobs that become one batch, with their counts and their fences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import orjson

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.job_records import StoredJob
from holdfast.backends.nats.state.mirror import TOMBSTONE_SECONDS, Mirror
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import MOST, MOST_BYTES, BatchMessage, state
from holdfast.model.states import LIVE, State

_GONE_SECONDS = 1
_CLOSING = (
    subjects.SHARDS + 4
)  # messages that may end a batch: counts, jobs that left dead, the key order, a fence


class BatchBuilder:
    """What is to become of some jobs of one consumer."""

    def __init__(self, mirror: Mirror, ref: str, instance: str, history: int) -> None:
        self._mirror, self._ref, self._instance, self._history = mirror, ref, instance, history
        self._moved: Counter[str] = Counter()
        self._clusters: Counter[str] = Counter()
        self._left: list[int] = []
        self._messages: list[BatchMessage] = []
        self._size = 0

    def has_room(self, messages: int, size: int = 0) -> bool:
        """Return whether a change of so many more messages fits into the batch; the first one always may."""
        return not self._messages or (
            len(self._messages) + messages + _CLOSING <= MOST and self._size + size <= MOST_BYTES
        )

    def create(self, record: StoredJob) -> None:
        """A new job. The cursor that moves in the same batch keeps it from being made twice."""
        self._add(state(subjects.job(record.ref, record.seq), record.encode()))
        self._moved[record.state] += 1

    def replace(self, old: StoredJob, new: StoredJob) -> None:
        """One live state after another."""
        self._add(state(subjects.job(new.ref, new.seq), new.encode(), old.revision))
        self._moved[old.state] -= 1
        self._moved[new.state] += 1

    def end(self, old: StoredJob, new: StoredJob) -> None:
        """A job's end: its record moves to where nobody mirrors it."""
        # The record goes first: if a dying server kept only part of the batch, the job is still live.
        self._keep(new)
        self._add(state(subjects.job(old.ref, old.seq), b"", old.revision, TOMBSTONE_SECONDS))
        self._moved[old.state] -= 1
        if new.state is not State.DEAD:
            self._moved[new.state] += 1

    def _keep(self, new: StoredJob) -> None:
        """The record of a job at its end: a dead letter's for good, with its event, another's for a while."""
        if new.state is State.DEAD:
            self._bury(new)
            return
        self._add(state(subjects.ended(new.ref, new.seq), new.encode(), ttl=self._history))
        for kept in filter(None, (new.copy, new.patch)):
            self._add(state(kept, b"", ttl=_GONE_SECONDS))

    def _bury(self, new: StoredJob, revision: int | None = None) -> None:
        letter = replace(new, cluster=new.fingerprint)
        self._add(state(subjects.dead(new.ref, new.seq), letter.encode(), revision))
        self._add(state(_entry(letter), b"%d" % (letter.ended or 0)))
        self._move_dead(letter, 1)

    def index(self, old: StoredJob) -> None:
        """A dead letter from before there was an index. `old.revision` is that of its record."""
        self._bury(old, old.revision)
        self.correct({State.DEAD: -1, f"dead:{old.reason}": -1}, {})  # there it is counted already

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
        """Messages that belong to the same step: an event's copy, a cursor."""
        for message in messages:
            self._add(message)

    def _add(self, message: BatchMessage) -> None:
        self._messages.append(message)
        self._size += len(message.data)

    def messages(self) -> list[BatchMessage]:
        """Return the batch, with the counts at its end."""
        return [*self._messages, *self._departed(), *self._counted()]

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
                yield _added(self._mirror, subjects.cluster(self._ref, self._instance, shard), moved)
        if any(self._moved.values()):
            yield _added(self._mirror, subjects.count(self._ref, self._instance), self._moved)


def fold_counts(mirror: Mirror, counted: Sequence[str]) -> list[BatchMessage]:
    """Add the counts of some processes to those of the processes that are gone.

    The sums go first: who reads in between counts too many, which at worst refuses a publish for a moment.
    """
    moved: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for subject in counted:
        moved[subjects.folded(subject)].update(mirror.counts_in(subject))
    sums = [_added(mirror, subject, counts) for subject, counts in moved.items()]
    return [*sums, *(state(subject, b"", mirror.revision(subject), TOMBSTONE_SECONDS) for subject in counted)]


def _added(mirror: Mirror, subject: str, moved: Mapping[str, int]) -> BatchMessage:
    """Return the message of some counts, moved by so much."""
    total = Counter(mirror.counts_in(subject))
    total.update(moved)
    return state(subject, job_records.encode_counts(total), mirror.revision(subject))


def _entry(letter: StoredJob) -> str:
    return subjects.index(letter.ref, letter.reason or "", letter.cluster, letter.seq)


def live(counts: Counter[str]) -> int:
    """Return how many jobs are not at their end."""
    return sum(counts[each] for each in LIVE)
