"""Handlers: a function for one consumer, how it is called, and the threads that plain functions run in."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from holdfast import typed
from holdfast.contracts import Start
from holdfast.model.errors import InvalidInput
from holdfast.model.job import Job

Function = Callable[..., Awaitable[None] | None]
_Call = tuple[Future[object], Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Handler:
    """A function with its consumer. It takes the event, and the job too if it has a second parameter.

    One whose first parameter has another type takes the event's data as a value of that type.
    """

    channel: str
    consumer: str
    function: Function
    policy: dict[str, Any]
    start: Start = "latest"
    concurrency: int = 10
    prefetch: int | None = None
    timeout: timedelta | None = None
    read: typed.Reader | None = field(init=False, default=None)
    """Makes what the function takes from the event's data; None where it takes the event."""

    def __post_init__(self) -> None:
        wrong = _problem(self.function)
        if wrong is None:
            try:
                object.__setattr__(self, "read", _reader(self.function))
            except InvalidInput as error:
                wrong = str(error)
        if wrong is not None:
            whose = f"consumer {self.consumer!r} of {self.channel!r}"
            raise InvalidInput(f"the handler {_name(self.function)} of {whose} {wrong}")

    @property
    def threaded(self) -> bool:
        """Plain functions run in threads, so that they may block."""
        return not any(map(inspect.iscoroutinefunction, _callables(self.function)))

    def bind(self, thread: ThreadSlot | None) -> Callable[[Job], Awaitable[object]]:
        """Return how to call it with a job: decided once, not for every job."""
        call = self._call()
        if thread is None:
            return call

        async def in_thread(job: Job) -> None:
            within = copy_context().run  # the trace, and the ids for logs
            returned = await thread.run(partial(within, call, job))
            if inspect.isawaitable(returned):  # a plain function around an async one
                await returned

        return in_thread

    def _call(self) -> Callable[[Job], Any]:
        function: Callable[..., Any] = self.function
        read, takes_job = self.read, len(_positional(function)) > 1
        if read is None:
            return (lambda job: function(job.event, job)) if takes_job else (lambda job: function(job.event))
        if takes_job:
            return lambda job: function(read(job.event.data), job)
        return lambda job: function(read(job.event.data))


def _reader(function: Callable[..., Any]) -> typed.Reader | None:
    """What makes the value that a function takes from the event's data; None where it takes the event."""
    sources = map(inspect.unwrap, _callables(function))
    names: dict[str, Any] = next((each.__globals__ for each in sources if hasattr(each, "__globals__")), {})
    for first in _positional(function)[:1]:
        wanted = typed.parameter_type(first.annotation, names)
        return None if wanted is None else typed.reader(wanted)
    return None


def _problem(function: object) -> str | None:
    """Return why a function cannot be a handler; None where it can."""
    if not callable(function):
        return "cannot be called; register a function"
    if any(
        inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _callables(function)
    ):
        return "has a yield, so that a call of it does nothing; register a function without one"
    try:
        signature = inspect.signature(function)
        signature.bind(*[None] * min(max(len(_positional(function)), 1), 2))
    except ValueError:
        return "does not tell its parameters; put a function of the event around it"
    except TypeError:
        return f"takes {signature}; it has to take the event, or the event and the job"
    return None


def _callables(function: Any) -> tuple[Any, Any]:
    """Return where its kind shows: the function, also one within a partial, and its type's `__call__`."""
    while isinstance(function, partial):
        function = function.func
    return function, type(function).__call__


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that can be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind in kinds]


def _name(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))


class Threads:
    """Up to `most` threads, made when they are needed. The process may exit while a call runs in one."""

    def __init__(self, most: int) -> None:
        self._most, self._made = most, 0
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def run(self, call: Callable[[], object]) -> Future[object]:
        """Run a call in whichever thread is free first."""
        result: Future[object] = Future()
        self._calls.put((result, call))
        if self._made < self._most and not self._idle.acquire(blocking=False):
            self._made += 1
            threading.Thread(target=self._work, name="holdfast-handler", daemon=True).start()
        return result

    def close(self) -> None:
        """Let each thread end, once its call has."""
        for _ in range(self._made):
            self._calls.put(None)

    def _work(self) -> None:
        while (taken := self._next()) is not None:
            result, call = taken
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(call())
                except BaseException as error:
                    result.set_exception(_raisable(error))
            del result, call, taken  # an idle thread keeps no event alive

    def _next(self) -> _Call | None:
        try:
            return self._calls.get_nowait()
        except Empty:
            self._idle.release()
            return self._calls.get()


class ThreadSlot:
    """One call at a time among the threads."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._last: Future[object] | None = None

    def run(self, call: Callable[[], object]) -> asyncio.Future[object]:
        """Return the call's result. A caller who stops waiting for it does not stop it: see `busy`."""
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
    """Return an error that can pass a future and means something outside of the thread that raised it."""
    if isinstance(error, Exception | SystemExit) and not isinstance(error, StopIteration):
        return error
    raised = RuntimeError(f"the handler raised {type(error).__name__}: {error}")
    raised.__cause__ = error
    return raised
