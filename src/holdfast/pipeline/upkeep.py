"""Upkeep beside a driver: a thread that compacts many small files into few, a bounded step at a time.

It runs while its driver has the lock, and checks that before every step. Where it conflicts with a commit,
the commit wins and the step is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from holdfast.model.errors import HoldfastError, InvalidInput

log = logging.getLogger(__name__)
SHORTEST = timedelta(hours=1)
CLEAN_EVERY = 3600.0
"""Seconds between two looks for what can be removed: it lists everything."""


class UpkeepCounts(NamedTuple):
    """What a step did, in files or objects."""

    merged: int = 0
    into: int = 0
    indexed: int = 0
    removed: int = 0

    def plus(self, other: UpkeepCounts) -> UpkeepCounts:
        """Both together."""
        return UpkeepCounts(*(one + two for one, two in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """What `compaction` of the configuration says."""

    enabled: bool = True
    every: timedelta = timedelta(minutes=1)
    keep: timedelta = timedelta(days=1)
    """How long replaced files stay, for those who still read them."""
    file_size: int = 64 << 20
    """Bytes of a data file of Delta, at most."""

    def __post_init__(self) -> None:
        if self.keep < SHORTEST:
            raise InvalidInput(f"keep {self.keep} is too short: what is being read may go; use at least 1h")


class UpkeepTask(Protocol):
    """The upkeep of one archive or table."""

    def step(self, now: datetime) -> UpkeepCounts:
        """One bounded step; all zero where nothing is left to do."""

    def clean(self, now: datetime) -> UpkeepCounts:
        """Remove what was replaced longer than `keep` ago."""


class Upkeep:
    """The upkeep of one driver."""

    def __init__(
        self,
        tasks: Callable[[], Sequence[UpkeepTask]],
        settings: CompactionSettings,
        check: Callable[[], None],
    ) -> None:
        self._tasks, self._settings, self._check = tasks, settings, check
        self._stop = threading.Event()
        self._cleaned = time.monotonic()

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Run in a thread of its own for the length of a block, and finish the step at hand."""
        if not self._settings.enabled:
            yield
            return
        thread = threading.Thread(target=self._run, name="holdfast-upkeep", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def run_once(self, now: datetime) -> None:
        """Steps until nothing is left to do, and now and then what can be removed."""
        due = time.monotonic() - self._cleaned >= CLEAN_EVERY
        for task in self._tasks():
            while not self._stop.is_set():
                self._check()
                if not any(task.step(now)):
                    break
            if due and not self._stop.is_set():
                task.clean(now)
        if due:
            self._cleaned = time.monotonic()

    def _run(self) -> None:
        while not self._stop.wait(self._settings.every.total_seconds()):
            try:
                self.run_once(datetime.now(UTC))
            except HoldfastError as error:
                log.warning("compaction is tried again in %s: %s", self._settings.every, error)
            except Exception:
                log.exception("compaction is tried again in %s", self._settings.every)
