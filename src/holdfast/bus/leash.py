"""The leash: a process that another one started drains when that one has gone."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

log = logging.getLogger(__name__)

LEASH = "HOLDFAST_LEASH"
"""Set for a process whose standard input is held open, and never written to, by the one that started it."""
GRACE = 120.0
"""How long a process gets to write what it holds, once it is told to stop."""


def end_with_parent() -> None:
    """Where we are on a leash: take the parent's end for a SIGTERM. However it dies, the kernel lets go.

    A drain that is not over within the grace is cut short: nobody else is there to do it.
    """
    if os.environ.pop(LEASH, None) is not None:
        threading.Thread(target=_follow, name="leash", daemon=True).start()


def _follow() -> None:
    while os.read(0, 1024):
        continue
    log.warning("the process that started this one has gone")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)
