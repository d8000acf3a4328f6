"""Load on a pair of servers through promotions, and what became of every event."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import holdfast
from holdfast.backends.postgres.leases import Leases
from holdfast.model.job import Job
from kit import CHANNEL, CONSUMER, until


def url_of(*databases: str) -> str:
    """One URL for a database on several servers: whichever takes writes."""
    first = urlsplit(databases[0])
    account = first.netloc.rpartition("@")[0]
    hosts = ",".join(urlsplit(each).netloc.rpartition("@")[2] for each in databases)
    return urlunsplit(first._replace(netloc=f"{account}@{hosts}", query="target_session_attrs=read-write"))


@dataclass
class Load:
    """Publishers and a worker, and all that they were told."""

    bus: holdfast.Bus
    """The worker's."""
    publisher: holdfast.Bus
    """As another process has one: nothing but publishes tells it that the store is back."""
    acknowledged: dict[str, str] = field(default_factory=dict)
    """Positions by id."""
    published_at: list[float] = field(default_factory=list)
    completed_at: list[float] = field(default_factory=list)
    """When something was acknowledged."""
    handled: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    """Completions that the store has accepted."""
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(self, name: str) -> None:
        """One event after the other, each until it is acknowledged, under the same id."""
        number = 0
        while not self._stop.is_set():
            try:
                receipt = await self.publisher.publish(CHANNEL, {"n": number}, id=f"{name}-{number}")
            except holdfast.Unavailable:
                await asyncio.sleep(0.05)
                continue
            self.acknowledged[receipt.id] = receipt.position
            self.published_at.append(time.monotonic())
            number += 1
            await asyncio.sleep(0.002)

    def app(self) -> holdfast.App:
        app = holdfast.App()

        @app.handler(CHANNEL, CONSUMER, start="earliest")
        async def handle(event: holdfast.Event) -> None:
            self.handled[event.id] += 1

        return app

    async def more(self, events: int) -> None:
        """Return when so many more were acknowledged."""
        wanted = len(self.acknowledged) + events

        async def there() -> bool:
            return len(self.acknowledged) >= wanted

        await until(there)

    async def went_on(self, since: float) -> bool:
        """Whether something was published and something completed after a moment."""
        return self.published_at[-1] > since and bool(self.completed_at) and self.completed_at[-1] > since

    async def despaired(self) -> bool:
        """Whether the publisher has failed so often that it waits longest between two tries."""
        return self.publisher.partitions.all[0].health._failures >= 6

    async def drained(self) -> None:
        """Publish no more; return when no job is left. A claim or a completion whose reply was lost leaves a
        lease that nobody holds."""
        self._stop.set()
        await self.bus.partitions.all[0].backend.advance(timedelta(minutes=5))

        async def done() -> bool:
            stats = await self.bus.partitions.all[0].backend.channels.consumer_stats(CHANNEL, CONSUMER)
            return not any(stats.states.get(each, 0) for each in ("ready", "leased", "scheduled"))  # type: ignore[call-overload]

        await until(done)


@asynccontextmanager
async def load(url: str, publishers: int = 3) -> AsyncIterator[Load]:
    """Publishers and a worker, each on a bus of this URL."""
    async with holdfast.connect(url) as bus, holdfast.connect(url) as publisher:
        made = Load(bus, publisher)
        complete = Leases.complete

        async def noted(jobs: Sequence[Job]) -> list[bool]:
            accepted = await complete(leases, jobs)
            made.completed_at.append(time.monotonic())
            made.completed.update(job.event.id for job, yes in zip(jobs, accepted, strict=True) if yes)
            return accepted

        leases: Leases = bus.partitions.all[0].backend.leases  # type: ignore[assignment]
        leases.complete = noted  # type: ignore[method-assign]
        await bus.subscribe(CHANNEL, CONSUMER)
        stop = asyncio.Event()
        publishing = [asyncio.create_task(made.publish(f"p{n}")) for n in range(publishers)]
        working = asyncio.create_task(made.app().run(bus, stop=stop, idle="200ms"))
        try:
            yield made
        finally:
            made._stop.set()
            await asyncio.gather(*publishing)
            stop.set()
            await working
