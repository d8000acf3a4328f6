"""The same verbs without await: an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from holdfast.bus.client import Bus
from holdfast.model.errors import InvalidInput, Unavailable

P = ParamSpec("P")
R = TypeVar("R")
_PATIENCE = 10.0


def _verb(
    method: Callable[Concatenate[Bus, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncBus, P], R]:
    def call(self: SyncBus, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run(lambda: method(self._bus, *args, **kwargs))

    return update_wrapper(call, method)


class SyncBus:
    """A thin wrapper of `Bus` for scripts: a context manager with the same verbs, for all threads."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise InvalidInput("this bus is open already; connect another one")
        loop = self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="holdfast", daemon=True)
        self._thread.start()
        try:
            self._run(self._bus.__aenter__)
        except BaseException:
            self._stop(loop)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is None or self._process != os.getpid():
            return  # a child must not use its parent's connections
        for call in list(self._calls):
            call.cancel()
        try:
            self._run(self._bus.close)
        finally:
            self._stop(self._loop)

    def _run(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        if self._process != os.getpid():
            raise Unavailable("this bus belongs to the parent process; connect one after the fork")
        with self._turn:
            if self._loop is None:
                raise Unavailable("this bus is not open; use 'with connect_sync(...)'")
            call = asyncio.run_coroutine_threadsafe(work(), self._loop)
            self._calls.add(call)
        try:
            return call.result()
        except CancelledError:
            raise Unavailable("the bus was closed during the call, whose outcome is unknown") from None
        finally:
            call.cancel()  # of one that was interrupted, say by Ctrl-C
            self._calls.discard(call)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._turn:
            self._loop = None
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()

    create_channel = _verb(Bus.create_channel)
    declare = _verb(Bus.declare)
    schema = _verb(Bus.schema)
    subscribe = _verb(Bus.subscribe)
    publish = _verb(Bus.publish)
    publish_many = _verb(Bus.publish_many)
    poll = _verb(Bus.poll)
    finalize = _verb(Bus.finalize)
    finalize_many = _verb(Bus.finalize_many)
    extend = _verb(Bus.extend)
    release = _verb(Bus.release)
    snooze = _verb(Bus.snooze)
    schedule = _verb(Bus.schedule)
    schedules = _verb(Bus.schedules)
    pause_schedule = _verb(Bus.pause_schedule)
    resume_schedule = _verb(Bus.resume_schedule)
    remove_schedule = _verb(Bus.remove_schedule)
    run_schedule = _verb(Bus.run_schedule)
    cancel = _verb(Bus.cancel)
    requeue = _verb(Bus.requeue)
    find_jobs = _verb(Bus.find_jobs)
    read = _verb(Bus.read)


async def _end_all() -> None:
    """Cancel every other task of this loop, and wait for their end within a bound."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_PATIENCE)
