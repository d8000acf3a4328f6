"""The same verbs without await: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.bus.client import Bus

P = ParamSpec("P")
R = TypeVar("R")


def _verb(
    method: Callable[Concatenate[Bus, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncBus, P], R]:
    def call(self: SyncBus, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(method(self._bus, *args, **kwargs))

    return update_wrapper(call, method)


class SyncBus:
    """A thin face over `Bus` for scripts: a context manager with the same verbs."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._bus.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._bus.close())
        finally:
            self._stop()

    def _run(self, awaitable: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    create_channel = _verb(Bus.create_channel)
    subscribe = _verb(Bus.subscribe)
    publish = _verb(Bus.publish)
    publish_many = _verb(Bus.publish_many)
    poll = _verb(Bus.poll)
    finalize = _verb(Bus.finalize)
    finalize_many = _verb(Bus.finalize_many)
    extend = _verb(Bus.extend)
    release = _verb(Bus.release)
    snooze = _verb(Bus.snooze)
    cancel = _verb(Bus.cancel)
    requeue = _verb(Bus.requeue)
    find_jobs = _verb(Bus.find_jobs)
    read = _verb(Bus.read)
