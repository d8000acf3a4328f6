"""The stage: what the steps of the demo share."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from holdfast.bus.client import Bus
from holdfast.cli.consumers import together
from holdfast.cli.demo.crew import Crew
from holdfast.cli.demo.record import Record
from holdfast.cli.demo.terms import CONSUMER
from holdfast.cli.session import stores
from holdfast.contracts import ConsumerStats
from holdfast.model.event import Event
from holdfast.model.job import LIVE

_BATCH = 250


@dataclass(slots=True)
class Stage:
    """The bus, the workers, and the record of what was promised."""

    bus: Bus
    crew: Crew
    channel: str
    size: int
    """How many orders there will be, roughly."""
    record: Record = field(default_factory=Record)
    workers: list[Process] = field(default_factory=list)

    async def publish(self, events: Iterable[Event]) -> list[Event]:
        """Publish in batches and note every acknowledgement."""
        left, sent = iter(events), []
        while batch := list(islice(left, _BATCH)):
            self.record.note(self.channel, await self.bus.publish_many(self.channel, batch))
            sent += batch
        return sent

    async def stats(self) -> ConsumerStats:
        """The jobs of the orders, by state."""
        found = [await store.consumer_stats(self.channel, CONSUMER) for store in await stores(self.bus)]
        return together(found)

    async def live(self) -> int:
        """How many orders are still waiting or at work."""
        states = (await self.stats()).states
        return sum(states.get(state, 0) for state in LIVE)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for something that must come true while the workers live."""
        while not await condition():
            for worker in self.workers:
                self.crew.check(worker)
            await asyncio.sleep(0.1)
