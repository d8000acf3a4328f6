"""Reading the log while somebody else's write is held open that publishes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from statistics import median

import psycopg

import holdfast
from holdfast.contracts import Backend

from .measures import Figures, LostEventsError, Stage
from .payload import stamped
from .sizes import Sizes

CHANNEL, READER = "read", "reader"
RATE = 50
PAUSE = 0.1
PAGE = 1_000
FREE_SECONDS = 30.0
"""How long it is read without a write, at most: that stands beside."""
PATIENCE = 30.0


@dataclass
class Progress:
    """What was acknowledged, in order, and when; and how far a reader has come."""

    cursor: str | None
    acknowledged: dict[str, int] = field(default_factory=dict)
    """By position: the how manieth it was."""
    at: list[float] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    extent: int = 0
    """How many of them the log's extent covered."""
    ages: list[float] = field(default_factory=list)
    extent_ages: list[float] = field(default_factory=list)

    def age(self, reached: int) -> float:
        """Seconds since the oldest event was acknowledged that is beyond so many; 0 where there is none."""
        return time.perf_counter() - self.at[reached] if reached < len(self.at) else 0.0

    def sample(self) -> None:
        self.ages.append(self.age(len(self.read)))
        self.extent_ages.append(self.age(self.extent))


async def beside_write(stage: Stage, sizes: Sizes) -> Figures:
    """How old the oldest event was that a reader could not get at, without and with the open write."""
    figures: Figures = {}
    for name, seconds in (("free", min(FREE_SECONDS, sizes.write_seconds)), ("held", sizes.write_seconds)):
        channel = f"{CHANNEL}-{name}"
        async with holdfast.connect(stage.url) as bus:
            async with write(stage.url) if name == "held" else nullcontext():
                found = await _read_for(bus, channel, seconds)
            await _complete(bus, channel, found)
        figures |= {
            f"unread_{name}_max": max(found.ages),
            f"unread_{name}_p50": median(found.ages),
            f"extent_{name}_max": max(found.extent_ages),
        }
    return figures


async def _read_for(bus: holdfast.Bus, channel: str, seconds: float) -> Progress:
    """Publish at a steady rate and read what can be read, as a stream consumer does, for so long."""
    backend = bus.partitions.all[0].backend
    await bus.create_channel(channel)
    cursor = await backend.cursors.attach(channel, READER)
    found, end = Progress(cursor.position), time.perf_counter() + seconds
    publisher = asyncio.create_task(_publish_until(bus, channel, end, found))
    while not publisher.done():
        await _read(bus, backend, channel, found)
        found.sample()
        await asyncio.sleep(PAUSE)
    await publisher
    return found


async def _publish_until(bus: holdfast.Bus, channel: str, end: float, found: Progress) -> None:
    start = time.perf_counter()
    while time.perf_counter() < end:
        await asyncio.sleep(max(0.0, start + len(found.at) / RATE - time.perf_counter()))
        receipt = await bus.publish(channel, stamped())
        found.acknowledged[receipt.position] = len(found.at)
        found.at.append(time.perf_counter())


async def _read(bus: holdfast.Bus, backend: Backend, channel: str, found: Progress) -> None:
    """All pages that there are now; the cursor moves behind each, as far as the store lets it."""
    last = (await backend.log.extent(channel)).last
    if last is not None:  # an unknown one is an event whose acknowledgement is still on its way
        found.extent = found.acknowledged.get(last, len(found.at) - 1) + 1
    while entries := await bus.read(channel, after=found.cursor, limit=PAGE):
        found.read += [entry.position for entry in entries]
        if not await backend.cursors.move(channel, READER, found.cursor, found.read[-1]):
            raise LostEventsError(f"the cursor of {channel} is not where its reader left it")
        found.cursor = found.read[-1]


async def _complete(bus: holdfast.Bus, channel: str, found: Progress) -> None:
    """Whatever was held back comes in the end, once and in order."""
    backend = bus.partitions.all[0].backend
    published = list(found.acknowledged)
    end = time.perf_counter() + PATIENCE
    while len(found.read) < len(published) and time.perf_counter() < end:
        await _read(bus, backend, channel, found)
        await asyncio.sleep(PAUSE)
    if found.read != published:
        raise LostEventsError(f"{len(found.read)} events were read in order, {len(published)} were published")


@asynccontextmanager
async def write(url: str) -> AsyncIterator[None]:
    """A transaction that has written to a table of its own and goes on."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("CREATE TABLE elsewhere (n integer)")
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO elsewhere VALUES (1)")
        yield
        await connection.execute("ROLLBACK")
