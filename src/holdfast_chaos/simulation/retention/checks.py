"""The checks of retention: what may be trimmed, and how far a cursor may be."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.model.upkeep import Lock
from holdfast_chaos.simulation.jobs.checks import JobChecks
from holdfast_chaos.simulation.jobs.store import JobRow, LoggedEvent
from holdfast_chaos.simulation.scheduler import Scheduler


class RetentionChecks(JobChecks):
    """Knows what each stream consumer's sink holds, whatever the store believes."""

    def __init__(self, scheduler: Scheduler, policies: dict[str, Policy]) -> None:
        super().__init__(scheduler, policies)
        self.sinks: dict[str, set[str]] = {}
        self._newest = 0

    def attached(self, consumer: str, passed: Iterable[str]) -> None:
        """A stream consumer begins behind these positions."""
        self.sinks[consumer] = set(passed)

    def stored(self, consumer: str, positions: Iterable[str]) -> None:
        """These events are durable in its sink."""
        self.sinks[consumer].update(positions)

    def cursor_moved(self, consumer: str, position: str, log: Iterable[LoggedEvent]) -> None:
        """A cursor says that everything up to here is durable."""
        missing = [
            each for each in log if each.position <= position and each.position not in self.sinks[consumer]
        ]
        if missing:
            self._violate(
                "I9", f"the cursor of {consumer} passed {missing[0].event.id}, which its sink lacks"
            )

    def locked(self, lock: Lock) -> None:
        """A lock was taken."""
        if lock.token <= self._newest:
            self._violate("I5", f"{lock.owner} got the lock under token {lock.token} after {self._newest}")
        self._newest = lock.token

    def trimmed(self, entry: LoggedEvent, rows: Iterable[JobRow], lock: Lock) -> None:
        """An event is gone from the log."""
        name = entry.event.id
        if lock.token != self._newest:
            self._violate("I5", f"{lock.owner} trimmed {name} under token {lock.token}, not {self._newest}")
        for consumer, sink in self.sinks.items():
            if entry.position not in sink:
                self._violate("I7", f"{name} was trimmed before {consumer} had it")
        for row in rows:
            if row.live or row.state is State.DEAD:
                self._violate("I7", f"{name} was trimmed while its job for {row.consumer} is {row.state}")
