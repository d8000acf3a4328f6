"""The test kit: short words for what most tests of the bus do, in the contract's own verbs."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from holdfast.contracts import Applied, Backend, Consumer, Start
from holdfast.model.decide import describe
from holdfast.model.event import DEFAULT_SOURCE, Event, LogEntry, Receipt
from holdfast.model.job import Burial, Failure, Job, JobRecord, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.upkeep.lifecycle import Health, LifecycleSteps

T = TypeVar("T")

CHANNEL, CONSUMER = "orders", "billing"
BOOM: Failure = describe(RuntimeError("boom"))
MINUTE = timedelta(minutes=1)
LEASE = timedelta(minutes=5)
"""The default lease."""
NO_OVERLAP = (Path(__file__).parent / "no_overlap.sql").read_text()
"""For PostgreSQL: with it a database refuses rows of a consumer that stand for the same job."""
_MEMORY, _ENOUGH = "/dev/shm", 4 << 30  # noqa: S108 - the server's folder in it is private


@contextmanager
def in_memory() -> Iterator[None]:
    """Folders of servers that are started here are in memory, where there is enough."""
    before = tempfile.tempdir
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH:
        tempfile.tempdir = _MEMORY
    try:
        yield
    finally:
        tempfile.tempdir = before


NOUNS = (
    "channels",
    "log",
    "leases",
    "deadletters",
    "lifecycle",
    "cursors",
    "locks",
    "retention",
    "groups",
    "records",
)


class Hooked:
    """A real backend whose verbs go through `hook(verb, call, *arguments, **options)`, as `leases.claim`."""

    def __init__(self, target: Any, hook: Callable[..., Any], path: str = "") -> None:
        self._target, self._hook, self._path = target, hook, path

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in NOUNS and not self._path:
            return Hooked(found, self._hook, f"{name}.")
        if not callable(found):
            return found
        return lambda *arguments, **options: self._hook(f"{self._path}{name}", found, *arguments, **options)


async def subscribe(
    backend: Backend,
    consumer: str = CONSUMER,
    *,
    channel: str = CHANNEL,
    start: Start = "latest",
    **policy: Any,
) -> Consumer:
    return await backend.channels.subscribe(channel, consumer, Policy.of(**policy), start)


async def publish(
    backend: Backend,
    *ids: str,
    channel: str = CHANNEL,
    key: str | None = None,
    at: datetime | None = None,
    priority: int = 0,
) -> list[Receipt]:
    """One batch of events whose data is their id."""
    events = [Event({"id": event_id}, event_id, key=key) for event_id in ids]
    return await backend.log.publish(channel, events, at=at, priority=priority)


async def claim(
    backend: Backend, limit: int = 100, *, consumer: str = CONSUMER, channel: str = CHANNEL
) -> list[Job]:
    return await backend.leases.claim(channel, consumer, limit, "tester")


async def claim_one(backend: Backend, *, consumer: str = CONSUMER, channel: str = CHANNEL) -> Job:
    """The next job; there must be one."""
    [job] = await claim(backend, 1, consumer=consumer, channel=channel)
    return job


async def step(backend: Backend) -> Applied:
    """One step of the lifecycle, both phases."""
    return await LifecycleSteps(backend, Health()).run_once()


async def abandon(backend: Backend, after: timedelta = LEASE) -> Applied:
    """Let every running lease of that length end without an answer."""
    await backend.advance(after)
    return await step(backend)


async def fail(backend: Backend, job: Job, delay: timedelta | None = timedelta(0)) -> bool:
    """A failed attempt that is tried again after `delay`."""
    [accepted] = await backend.leases.retry([Retry(job, delay, BOOM)])
    return accepted


async def bury(backend: Backend, job: Job, failure: Failure = BOOM) -> bool:
    [accepted] = await backend.leases.bury([Burial(job, Reason.TERMINAL, failure)])
    return accepted


async def complete(backend: Backend, job: Job) -> bool:
    [accepted] = await backend.leases.complete([job])
    return accepted


async def record(
    backend: Backend,
    event_id: str,
    *,
    consumer: str = CONSUMER,
    channel: str = CHANNEL,
    source: str = DEFAULT_SOURCE,
) -> JobRecord:
    """One event's job for one consumer, wherever it is now; there must be exactly one."""
    found = await backend.leases.find_jobs(channel, source, event_id)
    [mine] = [each for each in found if each.consumer == consumer]
    return mine


async def state(
    backend: Backend, event_id: str, *, consumer: str = CONSUMER, channel: str = CHANNEL
) -> State:
    return (await record(backend, event_id, consumer=consumer, channel=channel)).state


async def states(backend: Backend, *, consumer: str = CONSUMER, channel: str = CHANNEL) -> dict[State, int]:
    return (await backend.channels.consumer_stats(channel, consumer)).states


async def read_all(backend: Backend, channel: str = CHANNEL, *, page: int = 1000) -> list[LogEntry]:
    """The log from its beginning, page by page."""
    entries: list[LogEntry] = []
    while more := await backend.log.read(channel, entries[-1].position if entries else None, page):
        entries += more
    return entries


def ids(jobs: Iterable[Job]) -> list[str]:
    return [job.event.id for job in jobs]


def by_id(jobs: Sequence[Job]) -> dict[str, Job]:
    return {job.event.id: job for job in jobs}


async def until(condition: Callable[[], Awaitable[T]], patience: float = 60.0) -> T:
    """Wait until the condition answers something true, and answer that."""
    deadline = time.monotonic() + patience
    while not (answer := await condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)
    return answer


@asynccontextmanager
async def calm_clock() -> AsyncIterator[Callable[[], float]]:
    """Seconds that passed while the machine did its work: one that stands still stops this clock too."""
    passed = 0.0

    async def tick() -> None:
        nonlocal passed
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.02)
            passed += min(time.monotonic() - began, 0.1)

    ticking = asyncio.create_task(tick())
    yield lambda: passed
    ticking.cancel()
