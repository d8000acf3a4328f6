"""Load on a NATS store whose servers fail, and the judgement of what it has left."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta

import holdfast
from holdfast.backends.nats import NatsBackend
from holdfast.model.event import Event
from holdfast.model.states import State
from kit import CHANNEL, claim, read_all, states, step


class Load:
    """Publishers and a worker that repeat whatever the store did not answer."""

    def __init__(self, backend: NatsBackend) -> None:
        self.backend, self.stop = backend, False
        self.acked: dict[str, str] = {}
        self.acked_at = [time.monotonic()]
        self.refused = 0
        self.completed: Counter[str] = Counter()
        self._tasks = [asyncio.create_task(self.publish(f"p{size}", size)) for size in (1, 40)]
        self._tasks.append(asyncio.create_task(self.work()))

    async def end(self) -> None:
        """Let everybody finish what is under way."""
        self.stop = True
        await asyncio.gather(*self._tasks)

    async def publish(self, name: str, size: int) -> None:
        turn = 0
        while not self.stop:
            turn += 1
            events = [Event({"n": n}, f"{name}-{turn}-{n}") for n in range(size)]
            receipts = await self.insist(events)
            self.acked |= {receipt.id: receipt.position for receipt in receipts}
            self.acked_at.append(time.monotonic())

    async def got_on(self, acked: int, completed: int) -> bool:
        """Whether everybody has done that much, so that a kill interrupts all of them."""
        return len(self.acked) >= acked and len(self.completed) >= completed

    @property
    def longest_pause(self) -> float:
        """The longest time between two acknowledgements of a publish."""
        return max(after - before for before, after in zip(self.acked_at, self.acked_at[1:], strict=False))

    async def insist(self, events: list[Event]) -> list[holdfast.Receipt]:
        while True:
            try:
                return await self.backend.log.publish(CHANNEL, events)
            except holdfast.Unavailable:
                self.refused += 1
                await asyncio.sleep(0.02)

    async def work(self) -> None:
        while not self.stop:
            try:
                jobs = await claim(self.backend, 20)
                answers = await self.backend.leases.complete(jobs)
                self.completed.update(job.event.id for job, yes in zip(jobs, answers, strict=True) if yes)
            except holdfast.Unavailable:
                await asyncio.sleep(0.02)


async def judge(backend: NatsBackend, load: Load) -> list[str]:
    """Nothing acknowledged is lost, nothing is doubled, everything drains; returns all positions."""
    log = {entry.event.id: entry.position for entry in await read_all(backend)}
    assert len(log) == len(await read_all(backend)), "one event per id"
    assert load.acked.items() <= log.items(), "each where its receipt said"
    assert max(load.completed.values()) == 1
    await backend.advance(timedelta(hours=1))
    while (await step(backend)).total:
        pass
    while jobs := await claim(backend, 500):
        assert all(await backend.leases.complete(jobs))
    assert await states(backend) == {State.DONE: len(log)}, "counters equal counts"
    return list(log.values())
