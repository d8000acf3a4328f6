"""Signals: the first one asks to stop, the second one insists."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """An event that SIGTERM or SIGINT sets; a second signal cancels the task that this was called in.

    Only the main thread hears signals; elsewhere nothing sets the event.
    """
    stop = asyncio.Event()
    loop, main = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and main is not None:
            log.warning("second signal: aborting")
            main.cancel()
        stop.set()

    heard = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
    for number in heard:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
