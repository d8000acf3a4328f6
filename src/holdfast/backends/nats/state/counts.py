"""Counts: jobs by state and dead letters by reason and fingerprint, as each process has moved them.

Each process has a message of its own for each consumer, so that two of them never wait for each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from holdfast.backends.nats.state import job_records
from holdfast.backends.nats.state.mirror import TOMBSTONE_SECONDS, Mirror
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage, state
from holdfast.model.states import LIVE


def fold_counts(mirror: Mirror, counted: Sequence[str]) -> list[BatchMessage]:
    """Add the counts of some processes to those of the processes that are gone.

    The sums go first: who reads in between counts too many, which at worst refuses a publish for a moment.
    """
    moved: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for subject in counted:
        moved[subjects.folded(subject)].update(mirror.counts_in(subject))
    sums = [added(mirror, subject, counts) for subject, counts in moved.items()]
    return [*sums, *(state(subject, b"", mirror.revision(subject), TOMBSTONE_SECONDS) for subject in counted)]


def added(mirror: Mirror, subject: str, moved: Mapping[str, int]) -> BatchMessage:
    """Return the message of some counts, moved by so much."""
    total = Counter(mirror.counts_in(subject))
    total.update(moved)
    return state(subject, job_records.encode_counts(total), mirror.revision(subject))


def live(counts: Counter[str]) -> int:
    """Return how many jobs are not at their end."""
    return sum(counts[each] for each in LIVE)
