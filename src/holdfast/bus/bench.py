"""Benches: where plain handlers work, in threads, so that they may block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue

_Order = tuple[Future[object], Callable[[], object]]


class Threads:
    """Up to so many threads, made when they are needed. No exit of the process waits for a call in one."""

    def __init__(self, most: int) -> None:
        self._most, self._made = most, 0
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def run(self, call: Callable[[], object]) -> Future[object]:
        """Make a call in whichever thread is free first."""
        answer: Future[object] = Future()
        self._orders.put((answer, call))
        if self._made < self._most and not self._idle.acquire(blocking=False):
            self._made += 1
            threading.Thread(target=self._work, name="holdfast-handler", daemon=True).start()
        return answer

    def close(self) -> None:
        """Let each thread end, once its call has."""
        for _ in range(self._made):
            self._orders.put(None)

    def _work(self) -> None:
        while (order := self._next()) is not None:
            answer, call = order
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(call())
                except BaseException as error:
                    answer.set_exception(_raisable(error))
            del answer, call, order  # an idle thread keeps no event alive

    def _next(self) -> _Order | None:
        try:
            return self._orders.get_nowait()
        except Empty:
            self._idle.release()
            return self._orders.get()


class Bench:
    """One place among the threads: one call at a time."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._last: Future[object] | None = None

    def run(self, call: Callable[[], object]) -> asyncio.Future[object]:
        """What the call answers. Who stops waiting for it does not stop it: see `busy`."""
        self._last = self._threads.run(call)
        return asyncio.wrap_future(self._last)

    @property
    def busy(self) -> bool:
        """Whether a call still runs."""
        return self._last is not None and not self._last.done()

    async def free(self) -> None:
        """Wait until no call runs."""
        if self._last is not None:
            await asyncio.wait([asyncio.wrap_future(self._last)])


def _raisable(error: BaseException) -> BaseException:
    """What only means something in the thread where it was raised, or cannot pass a future, in words."""
    if isinstance(error, Exception | SystemExit) and not isinstance(error, StopIteration):
        return error
    raised = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
    raised.__cause__ = error
    return raised
