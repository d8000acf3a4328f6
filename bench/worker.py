"""One worker process: `python -m bench.worker TARGET URL BOARD count|hold|clock`.

It begins at the first byte on its standard input, and works until that is closed, so that none outlives the
benchmark, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import uvloop

from .board import Board
from .contestants import Contestant, OnEvent, load

GRACE = 10.0
"""Seconds that a contestant gets to stop by itself; the server may be gone already."""


def stop_at_eof(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Stop the task when the benchmark closes our standard input, or is gone."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 64):  # not through a buffer, whose lock would outlive us
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


async def work(contestant: Contestant, on_event: OnEvent) -> None:
    task = asyncio.create_task(contestant.work(on_event))
    stop_at_eof(asyncio.get_running_loop(), task)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(target: str, url: str, path: str, handler: str) -> None:
    board = Board(Path(path))
    contestant = load(target)
    # Only peers that block the loop need the signal, and they replace this.
    signal.signal(signal.SIGTERM, lambda *_: None)
    board.mark_ready()
    if os.read(sys.stdin.fileno(), 1):
        handlers = {"count": board.count, "hold": board.hold, "clock": board.clock}
        uvloop.run(work(contestant(url), handlers[handler]))


if __name__ == "__main__":
    main(*sys.argv[1:])
