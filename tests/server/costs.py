"""What a request costs: its memory, and the longest step of the event loop, by the clock of its thread.

For so long nobody else is served; how busy the machine is does not count. Memory is what Python has allocated
at the peak, above what it had before. The application is asked without a network: nothing of a client counts.
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from application import Application

MIB = 1 << 20
CHUNK = 64 << 10
JSON, NDJSON, FORM = "application/json", "application/x-ndjson", "application/x-www-form-urlencoded"
TRIES, FAST = 3, 0.025
"""The time is the least of so many tries, unless the first was fast: whoever shares the processor, or its
caches, can only make it longer."""


@dataclass(frozen=True)
class Hostile:
    """A request that is meant to be expensive."""

    name: str
    method: str
    path: str
    body: bytes = b""
    kind: str = JSON
    query: str = ""
    short: bool = False
    """Whether every run of the tests measures it."""


@dataclass
class Cost:
    """What one request took."""

    status: int = 0
    seconds: float = 0.0
    """The longest step of the event loop."""
    step: str = ""
    """Which that was."""
    size: int = 0
    """The most memory."""
    answered: int = 0
    """Bytes of the answer."""

    def __str__(self) -> str:
        return f"{self.status}, {self.size / MIB:.1f} MiB, {1000 * self.seconds:.1f} ms in {self.step}"


async def measure(found: Application, request: Hostile) -> Cost:
    """Its time first, then its memory, which takes time to note."""
    cost, again = await _timed(found, request), Cost()
    for _ in range(TRIES - 1):
        if cost.seconds > FAST:
            cost = min(cost, await _timed(found, request), key=lambda each: each.seconds)
    tracemalloc.start()
    try:
        await ask(found, request, again)
        cost.size = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return cost


async def _timed(found: Application, request: Hostile) -> Cost:
    cost = Cost()
    with watched(cost):
        await ask(found, request, cost)
    return cost


@contextmanager
def watched(cost: Cost) -> Iterator[None]:
    """Note the longest step of the event loop."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        if (took := time.thread_time() - began) > cost.seconds:
            cost.seconds, cost.step = took, repr(handle)[:300]

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


async def ask(found: Application, request: Hostile, cost: Cost) -> None:
    """Send it to the application, and throw its answer away. Whoever watches a live page leaves soon."""
    places, enough = iter(range(0, max(len(request.body), 1), CHUNK)), asyncio.Event()

    async def receive() -> dict[str, Any]:
        place = next(places, None)
        if place is None:
            await enough.wait()
            return {"type": "http.disconnect"}
        part = request.body[place : place + CHUNK]
        return {"type": "http.request", "body": part, "more_body": place + CHUNK < len(request.body)}

    async def send(message: dict[str, Any]) -> None:
        cost.status = message.get("status", cost.status)
        cost.answered += len(message.get("body", b""))
        if cost.answered and request.path.startswith("/live/"):
            enough.set()

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query.encode(),
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "headers": [
            (b"host", b"localhost"),
            (b"origin", b"http://localhost"),
            (b"content-type", request.kind.encode()),
        ],
    }
    await asyncio.create_task(found.app(scope, receive, send))  # type: ignore[arg-type]
