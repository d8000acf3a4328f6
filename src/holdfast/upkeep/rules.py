"""Rules: what the sweeper may remove, what it must not, and what it warns about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from holdfast.model.names import matches, most_specific

OnFull = Literal["refuse", "drop_oldest"]


@dataclass(frozen=True, slots=True)
class Keep:
    """How long, and how much of, a channel's log is kept."""

    max_age: timedelta | None = None
    max_bytes: int | None = None
    on_full: OnFull = "refuse"


@dataclass(frozen=True, slots=True)
class DeadConsumers:
    """What becomes of a foreign group none of whose members was seen for a while."""

    alive: timedelta = timedelta(minutes=5)
    after: timedelta = timedelta(days=7)
    action: Literal["report", "remove"] = "report"


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything that the sweeper decides by."""

    namespace: str = "gbe"
    interval: timedelta = timedelta(seconds=30)
    lock_ttl: timedelta = timedelta(seconds=60)
    retention: Mapping[str, Keep] = field(default_factory=dict)
    guard_groups: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By pattern: the foreign groups without whose acknowledgement nothing is trimmed."""
    dedupe_window: timedelta = timedelta(days=14)
    history: timedelta = timedelta(days=7)
    dead_letters: timedelta | None = None
    """How old dead letters become. None: they stay until somebody acts."""
    dead_consumers: DeadConsumers = DeadConsumers()
    lag_events: int = 10_000
    lag_age: timedelta = timedelta(hours=1)

    def keep(self, channel: str) -> Keep | None:
        """How a channel's log is kept, by the most specific pattern; None: for ever."""
        pattern = most_specific(self.retention, channel)
        return None if pattern is None else self.retention[pattern]

    def guards(self, channel: str) -> list[str]:
        """The foreign groups that guard a channel."""
        return sorted(
            {
                name
                for pattern, names in self.guard_groups.items()
                if matches(pattern, channel)
                for name in names
            }
        )

    @property
    def lock_name(self) -> str:
        """The sweeper's lock."""
        return f"{self.namespace}:lock:sweeper"
