"""Stopping: how a command that runs until it is told to stop hears of it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def unwind_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: it frees its locks and says how far it came. A second one kills.

    Commands that drain take the signal over for as long as they run.
    """

    def unwind(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, unwind)


@contextmanager
def told_to_stop(message: str) -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set; a second one ends the program as it stands."""
    stop = threading.Event()

    def tell(number: int, _: object) -> None:
        log.info("stopping: %s", message)
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    before = [signal.signal(number, tell) for number in _SIGNALS]
    try:
        yield stop
    finally:
        for number, handler in zip(_SIGNALS, before, strict=True):
            signal.signal(number, handler)
