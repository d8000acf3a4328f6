"""The connection of a source to its stores: backends on an event loop in a thread of its own.

Spark calls from ordinary code and minutes may pass between two calls. The loop runs on meanwhile, so that a
server's pings are answered.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import wait
from typing import Any, TypeVar

from holdfast import wiring
from holdfast.bus.partitions import Stores
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput

T = TypeVar("T")


class Connection:
    """Opened stores. Use it with `with`, or close it."""

    def __init__(self, urls: Sequence[str], *, connections: int = 4) -> None:
        if not urls and not wiring.PRIVATE.exists():
            raise InvalidInput(
                "no store is named: set the option url, or HOLDFAST_URL where the Spark driver starts"
            )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast", daemon=True)
        self._thread.start()
        self._leave: Callable[[], None] | None = None
        self.backends: list[Backend] = []
        try:
            addresses, self._leave = wiring.stores(urls)
            found = Stores()
            for url in addresses:
                backend = wiring.backend(url, connections=connections)
                self.run(backend.open())
                self.backends.append(backend)
                if len(addresses) > 1:
                    self.run(found.add(backend))
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop; returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """Iterate over an async generator; the next item is fetched while one is in use."""

        async def step() -> tuple[T] | None:
            async for item in items:
                return (item,)
            return None

        coming = asyncio.run_coroutine_threadsafe(step(), self._loop)
        try:
            while (found := coming.result()) is not None:
                coming = asyncio.run_coroutine_threadsafe(step(), self._loop)
                yield found[0]
        finally:
            wait([coming])  # what runs cannot be closed
            self.run(items.aclose())

    def close(self) -> None:
        """Close the backends and end the loop."""
        try:
            for backend in self.backends:
                self.run(backend.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            if self._leave is not None:
                self._leave()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
