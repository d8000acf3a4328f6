"""Apps: handlers by channel and consumer, and the process that runs them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

from holdfast.bus.client import Bus
from holdfast.bus.handler import Function, Handler
from holdfast.bus.heartbeat import Heartbeat
from holdfast.bus.partitions import Partition
from holdfast.bus.shutdown import stop_on_signal
from holdfast.bus.worker import Worker
from holdfast.contracts import STORE_ERRORS, Listener, Start, raise_if_cancelled
from holdfast.model.backoff import backoff_seconds
from holdfast.model.duration import parse_duration
from holdfast.model.errors import Duration, InvalidInput, TooManyConnections
from holdfast.model.names import check_name
from holdfast.model.policy import Policy
from holdfast.upkeep.lifecycle import INTERVAL, LifecycleSteps

log = logging.getLogger(__name__)

T = TypeVar("T")
MAX_IDLE = timedelta(seconds=10)
_PAUSES = 0.2, 5.0


class App:
    """A collection of handlers. `holdfast worker module:app` runs it; so does `await app.run(bus)`."""

    def __init__(self) -> None:
        self.handlers: list[Handler] = []

    def handler(
        self,
        channel: str,
        consumer: str,
        *,
        start: Start = "latest",
        concurrency: int = 10,
        prefetch: int | None = None,
        timeout: Duration | None = None,
        **policy: Any,
    ) -> Callable[[Function], Function]:
        """Register an async or plain function for a consumer, which is created when the app runs.

        `concurrency` handlers run at once; `prefetch` jobs are leased ahead (by default as many as the
        handlers' speed is worth); `timeout` fails an attempt that takes longer; the rest is the policy.
        """
        check_name(channel)
        check_name(consumer, "consumer")
        Policy.of(**policy)
        if concurrency < 1 or (prefetch is not None and prefetch < 1):
            raise InvalidInput(f"concurrency {concurrency} and prefetch {prefetch} must be at least 1")
        if any((h.channel, h.consumer) == (channel, consumer) for h in self.handlers):
            raise InvalidInput(f"consumer {consumer!r} of {channel!r} has a handler; name another consumer")
        limit = None if timeout is None else parse_duration(timeout, what="timeout")
        if limit == timedelta(0):
            raise InvalidInput(
                f"timeout {timeout!r} fails every attempt; leave it out where there is no limit"
            )

        def register(function: Function) -> Function:
            self.handlers.append(
                Handler(channel, consumer, function, policy, start, concurrency, prefetch, limit)
            )
            return function

        return register

    async def run(
        self,
        bus: Bus,
        *,
        stop: asyncio.Event | None = None,
        idle: Duration = "1s",
        listen: bool = True,
        grace: Duration = "30s",
    ) -> None:
        """Work until `stop` is set, then drain: running handlers get `grace`, the rest is released.

        `idle` is the longest wait between two polls of an idle channel (at most 10 s); `listen` False
        polls only.
        """
        pause = parse_duration(idle, what="idle")
        if not timedelta(0) < pause <= MAX_IDLE:
            raise InvalidInput(f"idle {idle!r} is outside 0s to 10s")
        if not self.handlers:
            raise InvalidInput("the app has no handler; register one with @app.handler(channel, consumer)")
        stop = stop or asyncio.Event()
        policies = [await when_connected(partial(_ensure, bus, handler)) for handler in self.handlers]
        shortest = min(policy.lease for policy in policies)
        async with Heartbeat(bus, shortest, asyncio.get_running_loop()) as heart:
            workers = [
                Worker(bus, handler, heart, policy, pause.total_seconds())
                for handler, policy in zip(self.handlers, policies, strict=True)
            ]
            await _run_workers(bus, workers, stop, listen, parse_duration(grace, what="grace"))

    async def serve(self, bus: Bus, **options: Any) -> None:
        """Run until SIGTERM or SIGINT, then drain; a second signal aborts what still runs."""
        with stop_on_signal() as stop:
            await self.run(bus, stop=stop, **options)


async def _run_workers(
    bus: Bus, workers: list[Worker], stop: asyncio.Event, listen: bool, grace: timedelta
) -> None:
    """Run the workers, and each partition's lifecycle and listener, until `stop`; then drain."""
    channels = sorted({worker.handler.channel for worker in workers})

    def on_wake(store: int, channel: str) -> None:
        for worker in workers:
            if worker.handler.channel == channel:
                worker.wake(store)

    def on_cancel(store: int, channel: str, consumer: str, job_id: str) -> None:
        for worker in workers:
            if worker.handler.channel == channel and consumer in ("", worker.handler.consumer):
                worker.look_at(store, job_id)

    listeners: list[Listener] = []
    upkeep: list[asyncio.Task[None]] = []
    for partition in bus.partitions.all:
        upkeep.append(asyncio.create_task(run_lifecycle(partition.lifecycle)))
        if listen:
            told = partial(on_wake, partition.index), partial(on_cancel, partition.index)
            listeners += await _listen(partition, channels, *told)
    failed = [worker.start() for worker in workers]
    stopped = asyncio.create_task(stop.wait())
    try:
        ends: list[asyncio.Future[Any]] = [stopped, *failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(worker.drain(grace.total_seconds()) for worker in workers))
        for error in failed:
            if error.done():
                error.result()  # raises what made a worker fail
    except asyncio.CancelledError:
        await asyncio.gather(*(worker.drain(0) for worker in workers))
        raise
    finally:
        for task in (stopped, *upkeep):
            task.cancel()
        await asyncio.gather(stopped, *upkeep, return_exceptions=True)
        await asyncio.gather(*(listener.close() for listener in listeners), return_exceptions=True)


async def _ensure(bus: Bus, handler: Handler) -> Policy:
    """The policy of a handler's consumer, which is created where there is none."""
    made = await bus.ensure(handler.channel, handler.consumer, start=handler.start, **handler.policy)
    return made.policy


async def when_connected(call: Callable[[], Awaitable[T]]) -> T:
    """What the call returns, as soon as its store has a connection for us. A worker that ended instead would
    only be started again, to be refused again."""
    for failures in count(1):
        try:
            return await call()
        except TooManyConnections as error:
            log.warning("waiting for a connection: %s", error)
            await asyncio.sleep(backoff_seconds(failures, *_PAUSES))
    raise AssertionError("counting ends nowhere")


async def _listen(
    partition: Partition,
    channels: list[str],
    wake: Callable[[str], None],
    cancelled: Callable[[str, str, str], None],
) -> list[Listener]:
    """Return the listener of a store; none where it fails: polls find the work without it, later."""
    failed = partial(partition.count_error, "listen")
    try:
        return [await partition.backend.listen(channels, wake, failed, cancelled)]
    except STORE_ERRORS as error:
        raise_if_cancelled(error)
        failed(error)
        log.warning("no listener on partition %s, it is only polled: %r", partition.index, error)
        return []


async def run_lifecycle(lifecycle: LifecycleSteps) -> None:
    """Run a partition's lifecycle until cancelled, whatever the store raises."""
    while True:
        try:
            await lifecycle.run()
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            log.warning("the lifecycle failed and begins again", exc_info=True)
            await asyncio.sleep(INTERVAL)
