"""Upkeep beside a driver: a thread that makes many small files few, a bounded step at a time.

It runs while its driver has the lock, and asks before every step. What it does loses against whoever commits
first and is tried again; it never holds a commit back.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.archive.compaction import ArchiveCompaction
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.upkept import CompactionSettings, Upkept
from holdfast.pipeline.warehouse.address import upkeep_of

if TYPE_CHECKING:
    from holdfast.pipeline.warehouse.delta_upkeep import TableUpkeep

log = logging.getLogger(__name__)
CLEAN_EVERY = 3600.0
"""Seconds between two looks for what can be removed: it lists everything."""


class Task(Protocol):
    """Files of one place."""

    def step(self, now: datetime) -> Upkept:
        """One bounded step; all zero where nothing is left to do."""

    def clean(self, now: datetime) -> Upkept:
        """Remove what was replaced a while ago."""


class Upkeep:
    """The upkeep of one driver."""

    def __init__(
        self, tasks: Callable[[], Sequence[Task]], settings: CompactionSettings, check: Callable[[], None]
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


def warehouse_tasks(url: str, settings: CompactionSettings) -> Callable[[], Sequence[TableUpkeep]]:
    """The tables of a warehouse, as they are then. A DuckDB file keeps itself in order."""
    return lambda: upkeep_of(url, settings.file_size, settings.keep)


def archive_tasks(
    urls: Sequence[str], settings: CompactionSettings, check: Callable[[], None]
) -> Callable[[], Sequence[ArchiveCompaction]]:
    """Archives. One in a PostgreSQL table has no small files."""
    places = [url for url in dict.fromkeys(urls) if not url.startswith("postgres")]
    tasks = [ArchiveCompaction(open_store(url), settings.keep, check) for url in places]
    return lambda: tasks
