"""Frontiers: how far the log was taken up for a consumer, and which parts of it are leased.

An event that waits is not stored for its consumers: it is the log behind the frontier. A claim moves the
frontier and adds a lease, in one message that replaces the one that it was decided on. What happens to a
lease afterwards stands in a record of its own (leases.py), so that its workers write nothing here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any

import orjson

from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.batches import BatchMessage, state

MOST_LEASES = 400
"""Open leases of one frontier. What is claimed beyond them becomes jobs of their own."""
_MOST_RUNS = 250_000
"""Characters that the steps of their members take, where these are many and have gaps."""


def encode_runs(seqs: Sequence[int]) -> str:
    """Return the steps from each sequence to the next; those that repeat are written once."""
    steps = (after - before for before, after in pairwise(seqs))
    runs = ((step, sum(1 for _ in group)) for step, group in groupby(steps))
    return " ".join(str(step) if count == 1 else f"{step}x{count}" for step, count in runs)


def decode_runs(first: int, runs: str) -> list[int]:
    """Return the sequences of a first one and the steps behind it."""
    found = [first]
    for run in runs.split():
        step, _, count = run.partition("x")
        width, last = int(step), found[-1]
        found.extend(range(last + width, last + width * int(count or 1) + 1, width))
    return found


@dataclass(frozen=True)
class Lease:
    """A part of the log that one claim took: its members under one token, with one deadline at first."""

    token: int
    deadline: int
    worker: str
    first: int
    last: int
    count: int
    runs: str

    @classmethod
    def of(cls, token: int, deadline: int, worker: str, seqs: Sequence[int]) -> Lease:
        return cls(token, deadline, worker, seqs[0], seqs[-1], len(seqs), encode_runs(seqs))

    def stored(self) -> list[Any]:
        return [self.token, self.deadline, self.worker, self.first, self.last, self.count, self.runs]

    @cached_property
    def members(self) -> list[int]:
        """The sequences of its events, in order."""
        return decode_runs(self.first, self.runs)

    def has(self, seq: int) -> bool:
        if not self.first <= seq <= self.last:
            return False
        place = bisect_left(self.members, seq)
        return place < self.count and self.members[place] == seq


@dataclass(frozen=True)
class Frontier:
    """Up to `at` the log is taken up, up to `special` the marks of special events.

    `token` is the last one given to a lease; `done` counts the events that were completed in leases that are
    listed no more; `ahead` are events behind `at` that became jobs of their own before their turn, or ended.
    """

    at: int
    special: int = 0
    token: int = 0
    done: int = 0
    ahead: tuple[int, ...] = ()
    leases: tuple[Lease, ...] = ()
    revision: int = field(default=0, compare=False)

    def encode(self) -> bytes:
        ahead = [self.ahead[0], encode_runs(self.ahead)] if self.ahead else None
        leases = [lease.stored() for lease in self.leases]
        return orjson.dumps([self.at, self.special, self.token, self.done, ahead, leases])

    def message(self, ref: str) -> BatchMessage:
        """Return the message that puts this in the place of what it was made from."""
        return state(subjects.frontier(ref), self.encode(), self.revision)

    @property
    def is_crowded(self) -> bool:
        """Whether another lease would make the message too long."""
        many = len(self.leases) >= MOST_LEASES
        return many or sum(len(each.runs) for each in self.leases) >= _MOST_RUNS

    def lease(self, token: int) -> Lease | None:
        return next((each for each in self.leases if each.token == token), None)

    def holder(self, seq: int) -> Lease | None:
        """Return the lease that an event belongs to."""
        return next((each for each in self.leases if each.has(seq)), None)

    def with_ahead(self, seqs: Iterable[int]) -> Frontier:
        """Return the frontier with more events that are passed over when it gets there."""
        return replace(self, ahead=tuple(sorted({*self.ahead, *seqs})))


def decode(data: bytes, revision: int, known: Frontier | None = None) -> Frontier:
    """Return a frontier as it was stored. Leases that were known before stay the same objects."""
    at, special, token, done, ahead, stored = orjson.loads(data)
    before = {} if known is None else {each.token: each for each in known.leases}
    leases = tuple(before.get(each[0]) or Lease(*each) for each in stored)
    passed = tuple(decode_runs(*ahead)) if ahead else ()
    return Frontier(at, special, token, done, passed, leases, revision)
