"""One worker process: `python -m bench.worker TARGET URL BOARD count|clock`.

It works until its standard input is closed, so that none outlives the benchmark, however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from pathlib import Path

import uvloop

from .board import Board
from .contestants import load

GRACE = 10.0
"""Seconds that a contestant gets to stop by itself; the server may be gone already."""


def cancel_at_eof(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Cancel the task when the benchmark closes our standard input, or is gone."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 64):  # not through a buffer, whose lock would outlive us
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: the work has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


async def work(target: str, url: str, board: Board, handler: str) -> None:
    on_event = board.clock if handler == "clock" else board.count
    task = asyncio.create_task(load(target)(url).work(on_event))
    cancel_at_eof(asyncio.get_running_loop(), task)
    board.mark_ready()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def main(target: str, url: str, board: str, handler: str) -> None:
    uvloop.run(work(target, url, Board(Path(board)), handler))


if __name__ == "__main__":
    main(*sys.argv[1:])
