"""Handlers: a function that works for one consumer, and how it wants to be called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from holdfast.contracts import Start
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

    @property
    def threaded(self) -> bool:
        """Plain functions run in threads, so that they may block."""
        return not inspect.iscoroutinefunction(self.function)

    def bind(self, pool: Executor | None) -> Callable[[Job], Awaitable[object]]:
        """How to call it with a job: decided once, not for every job."""
        function: Callable[..., Any] = self.function
        takes_job = len(inspect.signature(function).parameters) > 1
        if pool is None:
            return (lambda job: function(job.event, job)) if takes_job else (lambda job: function(job.event))

        def in_thread(job: Job) -> Awaitable[object]:
            args = (job.event, job) if takes_job else (job.event,)
            within = copy_context().run  # the trace, and the ids for logs
            return asyncio.get_running_loop().run_in_executor(pool, within, function, *args)

        return in_thread
