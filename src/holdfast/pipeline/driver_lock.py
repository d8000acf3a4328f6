"""The driver lock: of each kind of driver one is at work at a time, under a lock of the first store."""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial

from holdfast.model.errors import HoldfastError
from holdfast.model.upkeep import Lock
from holdfast.pipeline.connection import Connection
from holdfast.upkeep.lock import holding

log = logging.getLogger(__name__)

LOCK_TTL = timedelta(seconds=15)
LOOK = 0.2
STALE = LOCK_TTL.total_seconds() + LOOK
"""By then a driver that died has lost its lock."""
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0


class Busy(HoldfastError):
    """Another driver of this kind is at work."""


def wait_for_stale_lock() -> Callable[[], bool]:
    """A function that waits and returns whether to try again: until a dead driver's lock has expired."""
    until, pause = time.monotonic() + STALE, threading.Event()
    return lambda: not pause.wait(LOOK) and time.monotonic() < until


@contextmanager
def driver_lock(
    connection: Connection, name: str, what: str, wait: Callable[[], bool]
) -> Iterator[Callable[[], None]]:
    """Hold the lock for the length of a block; yields a check that raises `LockLost` where it is lost.

    While another driver has it, `wait` returns whether to try again. Raises `Busy` where it returns False.
    """
    backend = connection.backends[0]
    owner = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
    for attempt in itertools.count():
        hold = holding(backend, name, owner, LOCK_TTL)
        lock = connection.run(hold.__aenter__())
        try:
            if lock is not None:
                yield partial(_renew, connection, lock)
                return
        finally:
            connection.run(hold.__aexit__(None, None, None))
        if attempt == 0:
            log.info("another %s is at work (lock %s)", what, name)
        if not wait():
            raise Busy(f"another {what} is at work (lock {name}); wait for it to end")


def _renew(connection: Connection, lock: Lock) -> None:
    connection.run(connection.backends[0].locks.renew(lock, LOCK_TTL))


def again(stop: threading.Event, error: HoldfastError, delay: float, *, progressed: bool) -> float:
    """Wait before the next try after a failure; returns how long. It doubles while nothing is achieved."""
    delay = FIRST_DELAY if progressed else min(2 * delay, LONGEST_DELAY)
    log.warning("%s; trying again in %g s", error, delay)
    stop.wait(delay)
    return delay
