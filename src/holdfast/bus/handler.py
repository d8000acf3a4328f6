"""Handlers: a function that works for one consumer, and how it wants to be called."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from holdfast.bus.bench import Bench
from holdfast.contracts import Start
from holdfast.model.errors import InvalidInput
from holdfast.model.job import Job

Function = Callable[..., Awaitable[None] | None]


@dataclass(frozen=True, slots=True)
class Handler:
    """A function with its consumer. It takes the event, and the job too if it has a second parameter."""

    channel: str
    consumer: str
    function: Function
    policy: dict[str, Any]
    start: Start = "latest"
    concurrency: int = 10
    prefetch: int | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        wrong = _objection(self.function)
        if wrong is not None:
            whose = f"consumer {self.consumer!r} of {self.channel!r}"
            raise InvalidInput(f"the handler {_name(self.function)} of {whose} {wrong}")

    @property
    def threaded(self) -> bool:
        """Plain functions run in threads, so that they may block."""
        return not any(map(inspect.iscoroutinefunction, _faces(self.function)))

    def bind(self, bench: Bench | None) -> Callable[[Job], Awaitable[object]]:
        """How to call it with a job: decided once, not for every job."""
        function: Callable[..., Any] = self.function
        takes_job = len(_places(function)) > 1
        if bench is None:
            return (lambda job: function(job.event, job)) if takes_job else (lambda job: function(job.event))

        async def in_thread(job: Job) -> None:
            args = (job.event, job) if takes_job else (job.event,)
            within = copy_context().run  # the trace, and the ids for logs
            answer = await bench.run(partial(within, function, *args))
            if inspect.isawaitable(answer):  # a plain function around an async one
                await answer

        return in_thread


def _objection(function: object) -> str | None:
    """Why a function can be no handler, if so."""
    if not callable(function):
        return "cannot be called; register a function"
    if any(
        inspect.isgeneratorfunction(face) or inspect.isasyncgenfunction(face) for face in _faces(function)
    ):
        return "has a yield, so that a call of it does nothing; register a function without one"
    try:
        signature = inspect.signature(function)
        signature.bind(*[None] * min(max(len(_places(function)), 1), 2))
    except ValueError:
        return "does not tell its parameters; put a function of the event around it"
    except TypeError:
        return f"takes {signature}; it has to take the event, or the event and the job"
    return None


def _faces(function: Any) -> tuple[Any, Any]:
    """Where its kind shows: in the function itself, also within a partial, or in how an object is called."""
    while isinstance(function, partial):
        function = function.func
    return function, type(function).__call__


def _places(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that are given by their place."""
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each for each in inspect.signature(function).parameters.values() if each.kind in by_place]


def _name(function: object) -> str:
    return getattr(function, "__qualname__", repr(function))
