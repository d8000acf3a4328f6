"""Edits: changes to one consumer's jobs that become one batch, with their counts and their fences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.backends.nats import records, subjects
from holdfast.backends.nats.batch import MOST, MOST_BYTES, Message, state
from holdfast.backends.nats.mirror import TOMBSTONE_SECONDS, Mirror
from holdfast.backends.nats.records import Record
from holdfast.model.job import LIVE, State

EVERYBODY = "all"
_GONE_SECONDS = 1


class Edit:
    """What is to become of some jobs of one consumer."""

    def __init__(self, mirror: Mirror, ref: str, instance: str, history: int) -> None:
        self._ref, self._history = ref, history
        self._count = subjects.count(ref, instance)
        self._counts, self._revision = mirror.counts(ref, instance), mirror.revision(self._count)
        self._moved: Counter[str] = Counter()
        self._messages: list[Message] = []
        self._size = 0

    def has_room(self, size: int = 0, messages: int = 2) -> bool:
        """Whether a change of so many more messages fits into the batch: ours are two, and three close it."""
        return len(self._messages) + messages + 3 <= MOST and self._size + size <= MOST_BYTES

    def create(self, record: Record) -> None:
        """A new job. The cursor that moves in the same batch keeps it from being made twice."""
        self._add(state(subjects.job(record.ref, record.seq), record.encode()))
        self._moved[record.state] += 1

    def replace(self, old: Record, new: Record) -> None:
        """One live state after another."""
        self._add(state(subjects.job(new.ref, new.seq), new.encode(), old.revision))
        self._moved[old.state] -= 1
        self._moved[new.state] += 1

    def end(self, old: Record, new: Record) -> None:
        """A job's end: its record moves to where nobody mirrors it."""
        # The record goes first: if a dying server kept only part of the batch, the job is still live.
        self._keep(new)
        self._add(state(subjects.job(old.ref, old.seq), b"", old.revision, TOMBSTONE_SECONDS))
        self._moved[old.state] -= 1
        self._moved[new.state] += 1
        if new.state is State.DEAD:
            self._moved[f"dead:{new.reason}"] += 1

    def _keep(self, new: Record) -> None:
        """The record of a job at its end: a dead letter's for good, with its event, another's for a while."""
        if new.state is State.DEAD:
            self._add(state(subjects.dead(new.ref, new.seq), new.encode()))
            return
        self._add(state(subjects.ended(new.ref, new.seq), new.encode(), ttl=self._history))
        if new.copy:
            self._add(state(new.copy, b"", ttl=_GONE_SECONDS))

    def purge(self, old: Record, new: Record) -> None:
        """A dead letter that is given up. `old.revision` is that of its record."""
        self._keep(new)
        self._leave_the_dead(old, new)

    def revive(self, old: Record, new: Record) -> None:
        """A dead letter that is live again. `old.revision` is that of its record."""
        self._add(state(subjects.job(new.ref, new.seq), new.encode()))
        self._leave_the_dead(old, new)

    def _leave_the_dead(self, old: Record, new: Record) -> None:
        self._add(state(subjects.dead(old.ref, old.seq), b"", old.revision, _GONE_SECONDS))
        self._moved[old.state] -= 1
        self._moved[f"dead:{old.reason}"] -= 1
        self._moved[new.state] += 1

    def raise_lane(self, revision: int) -> None:
        """Refuse the batch if a claim or requeue of this consumer came between, and those that saw less."""
        self._add(state(subjects.lane(self._ref), b"", revision))

    def also(self, messages: Sequence[Message]) -> None:
        """Messages that belong to the same step: an event's copy, a cursor."""
        for message in messages:
            self._add(message)

    def _add(self, message: Message) -> None:
        self._messages.append(message)
        self._size += len(message.data)

    def messages(self) -> list[Message]:
        """The batch, with the counts at its end."""
        if not any(self._moved.values()):
            return self._messages
        counts = Counter(self._counts)
        for name, number in self._moved.items():
            counts[name] += number
        return [*self._messages, state(self._count, records.encode_counts(counts), self._revision)]


def fold(mirror: Mirror, ref: str, instance: str) -> list[Message]:
    """Add one process's counts to those of the processes that are gone.

    The sum goes first: who reads in between counts too many, which at worst refuses a publish for a moment.
    """
    total, mine = subjects.count(ref, EVERYBODY), subjects.count(ref, instance)
    counts = mirror.counts(ref, EVERYBODY)
    for name, number in mirror.counts(ref, instance).items():
        counts[name] += number
    return [
        state(total, records.encode_counts(counts), mirror.revision(total)),
        state(mine, b"", mirror.revision(mine), TOMBSTONE_SECONDS),
    ]


def live(counts: Counter[str]) -> int:
    """How many jobs are not at their end."""
    return sum(counts[each] for each in LIVE)
