"""A process that tells a standstill of the machine from one of the store.

It beats five times in a second, with a little CPU and a write to the disk, and apart from that reads the
store's clock. Specification: url, history, drained (a file that ends it).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.chaos.history import History
from holdfast.contracts import Backend
from holdfast.wiring import backend

_BEAT, _READ, _WORK = 0.2, 1.0, 0.005


async def read_clock(store: Backend, notes: History) -> None:
    """Note the store's time, with the moment at which it was so."""
    asked = time.monotonic_ns()
    now = await store.now()
    notes.happened("clock", {"now": now.isoformat(), "at": (asked + time.monotonic_ns()) // 2})


def slowness() -> float:
    """How many times longer than on an idle machine a little work takes."""
    began, worked = time.monotonic(), time.process_time()
    while (done := time.process_time() - worked) < _WORK:
        pass
    return (time.monotonic() - began) / done


@asynccontextmanager
async def beating(notes: History) -> AsyncIterator[None]:
    """Note five times in a second that this process runs."""

    async def beat() -> None:
        while True:
            notes.happened("beat", {"slow": 1.0})
            await asyncio.sleep(_BEAT)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def main(spec: dict[str, Any]) -> None:
    notes, store, end = History(Path(spec["history"])), backend(spec["url"]), Path(spec["drained"])
    await store.open()

    async def beat() -> None:
        while not end.exists():
            await asyncio.to_thread(notes.sync)
            notes.happened("beat", {"slow": slowness()})
            await asyncio.sleep(_BEAT)

    async def read() -> None:
        while not end.exists():
            await read_clock(store, notes)
            await asyncio.sleep(_READ)

    await asyncio.gather(beat(), read())
    await store.close()
