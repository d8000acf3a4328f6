"""Shutdown: what tells a process to stop. Signals do, and the end of the process that started it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PARENT_WATCH = "HOLDFAST_PARENT_WATCH"
"""Set for a process whose standard input is held open, and never written to, by the one that started it."""
GRACE = 120.0
"""How long a process gets to write what it holds, once it is told to stop."""


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM or SIGINT sets; a second signal cancels the task that entered this.

    Only the main thread gets signals; elsewhere nothing sets the event.
    """
    stop = asyncio.Event()
    loop, main = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and main is not None:
            log.warning("second signal: aborting")
            main.cancel()
        stop.set()

    handled = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in handled:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def end_with_parent() -> None:
    """Where `PARENT_WATCH` is set: take the parent's end for a SIGTERM. However it dies, the kernel closes
    our standard input.

    A drain that is not over within the grace is cut short: nobody else is there to do it.
    """
    if os.environ.pop(PARENT_WATCH, None) is not None:
        threading.Thread(target=_watch_parent, name="parent-watch", daemon=True).start()


def _watch_parent() -> None:
    while os.read(0, 1024):
        continue
    log.warning("the process that started this one has gone")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
