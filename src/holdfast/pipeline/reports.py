"""Reports of a driver: what it has done, as a state record in the first store, for the server to show."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.driver_lock import LONGEST_DELAY
from holdfast.upkeep.state import driver, put_report

log = logging.getLogger(__name__)

INTERVAL = 10.0
"""Seconds between two reports at most; readers take a driver that is silent for longer as gone."""
_SHORTEST = 1.0
BOUNDS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
RECENT = 20
_ERROR = 500


class Amount(NamedTuple):
    """What a batch wrote of one channel."""

    rows: int
    bytes: int


class RecentBatch(NamedTuple):
    """A batch that was committed, and when on the monotonic clock."""

    rows: int
    seconds: float
    at: float


class Reporter:
    """Keeps the record of one driver up to date: after a batch, at most once a second, else now and then."""

    def __init__(self, namespace: str, name: str, more: Callable[[], Mapping[str, Any]] = dict) -> None:
        self._namespace, self._name, self._more = namespace, name, more
        self._owner, self._began = f"{socket.gethostname()}:{os.getpid()}", time.monotonic()
        self._channels: dict[str, Amount] = {}
        self._batches, self._failures, self._seconds = 0, 0, 0.0
        self._counts = [0] * (len(BOUNDS) + 1)
        self._recent: deque[RecentBatch] = deque(maxlen=RECENT)
        self._changed, self._reported = False, -INTERVAL
        self._lock = threading.Lock()  # batches end in a thread of Spark's

    def batch(self, written: Mapping[str, Amount], seconds: float) -> None:
        """A batch was committed."""
        rows = sum(each.rows for each in written.values())
        if not rows:
            return
        with self._lock:
            for channel, each in written.items():
                so_far = self._channels.get(channel, Amount(0, 0))
                self._channels[channel] = Amount(so_far.rows + each.rows, so_far.bytes + each.bytes)
            self._batches += 1
            self._seconds += seconds
            self._counts[bisect_left(BOUNDS, seconds)] += 1
            self._recent.append(RecentBatch(rows, seconds, time.monotonic()))
            self._changed = True

    def look(self, connection: Connection) -> None:
        """Report after a change at most once a second, else every `INTERVAL`."""
        if time.monotonic() - self._reported >= (_SHORTEST if self._changed else INTERVAL):
            self._report(connection, "running", INTERVAL)

    @contextmanager
    def at_work(self, connection: Connection) -> Iterator[None]:
        """Report that the driver is at work for the length of a block, and how it ended."""
        self._report(connection, "running", INTERVAL)
        try:
            yield
        except BaseException as error:
            self._failures += 1
            self._report(connection, "failing", LONGEST_DELAY, f"{type(error).__name__}: {error}"[:_ERROR])
            raise
        self._report(connection, "stopped", INTERVAL)

    def _report(self, connection: Connection, state: str, interval: float, error: str = "") -> None:
        """A report that cannot be written must not stop the work that it is about."""
        self._changed, self._reported = False, time.monotonic()
        try:
            report = {
                "state": state,
                "interval": interval,
                "error": error,
                **self._counters(),
                **self._more(),
            }
            store = connection.backends[0]
            connection.run(put_report(store, self._namespace, driver(self._name), report))
        except HoldfastError as trouble:
            log.warning("the %s driver could not report: %s", self._name, trouble)

    def _counters(self) -> dict[str, Any]:
        now = time.monotonic()
        with self._lock:
            last = self._recent[-1] if self._recent else None
            return {
                "owner": self._owner,
                "uptime_seconds": now - self._began,
                "failures": self._failures,
                "batches": self._batches,
                "channels": {name: each._asdict() for name, each in self._channels.items()},
                "seconds": {
                    "bounds": BOUNDS,
                    "counts": list(accumulate(self._counts)),
                    "sum": self._seconds,
                },
                "last_batch_seconds": None if last is None else now - last.at,
                "recent": [
                    {"rows": each.rows, "seconds": each.seconds, "age_seconds": now - each.at}
                    for each in self._recent
                ],
            }
