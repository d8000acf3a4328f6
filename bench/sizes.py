"""How much of everything the benchmark of the backlog does."""

from __future__ import annotations

from dataclasses import dataclass

from .measures import Plan


@dataclass(frozen=True)
class Sizes(Plan):
    events: int = 60_000
    """In a backlog, and in one bulk."""
    at_once: int = 16
    """Publishers that publish singly at the same time."""
    handler_seconds: float = 5.0
    """How long a backlog of handlers that wait should last at best."""
    count: int = 2_000_000
    """Bulk-published jobs that are drained beside a snapshot."""
    single_count: int = 200_000
    """Single-published ones."""
    write_seconds: float = 600.0
    """How long a write is held open."""
    beside_turns: int = 10
    """How often each number of consumers gets its publishes."""
    waiting: int = 1_000_000
    """Jobs that wait while they are counted."""
    consumers: int = 1_000
    """Of one channel, where there are many."""
    channels: int = 1_000
    """Of one store, where there are many."""
    callers: int = 64
    """Over REST at the same time."""
    calls: int = 100
    """Of each of them."""


SMOKE = Sizes(
    events=1_000,
    singles=100,
    seconds=2.0,
    rounds=1,
    handler_seconds=1.0,
    count=20_000,
    single_count=2_000,
    write_seconds=10.0,
    beside_turns=1,
    waiting=5_000,
    consumers=20,
    channels=20,
    calls=5,
)
