"""Consuming a backlog that was published singly or in bulk: how fast, and what a job costs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, cast

from .contestants import Counts, Joining, load
from .contestants.waiting import CONCURRENCY
from .crew import crew
from .measures import Figures, Stage, drained, finalized, verify, verify_handled
from .payload import stamped
from .sizes import Sizes
from .usage import probe

Published = Literal["single", "bulk"]
BULK = 20_000
"""Events in one bulk of a backlog."""
REST = 0.5
"""Seconds after the last handler in which its finalize reaches the store."""


async def consume(stage: Stage, sizes: Sizes, *, published: Published, processes: int) -> Figures:
    await fill(stage, sizes.events, published, sizes.at_once)
    return {f"consume_{published}_{processes}": await drained(stage, sizes.events, processes)}


async def costs(stage: Stage, sizes: Sizes, *, published: Published) -> Figures:
    """CPU and WAL for one job, from the first that is handled to the last finalize, by one worker process.

    The first event is held while the probe looks how much was used before it. Nothing else is asked of
    the store.
    """
    await fill(stage, sizes.events, published, sizes.at_once)
    await stage.settle()
    async with (
        crew(stage.target, stage.url, 1, held=True) as workers,
        probe(stage.url, [worker.process.pid for worker in workers.workers]) as looks,
    ):
        await workers.begin()
        await workers.until_handled(1, pause=0.001)
        before = await looks.look()
        workers.release()
        await workers.until_handled(sizes.events, pause=0.003)
        await asyncio.sleep(REST)
        used = await looks.look() - before
        if not await finalized(stage, sizes.events):  # not within its rest: what it still does is missing
            await workers.until(lambda: finalized(stage, sizes.events), pause=0.1)
            used = await looks.look() - before
        verify_handled(workers, sizes.events)
    return {
        f"server_{published}": 1e6 * used.server / sizes.events,
        f"client_{published}": 1e6 * used.client / sizes.events,
        f"wal_{published}": used.wal / sizes.events,
    }


async def handlers(stage: Stage, sizes: Sizes, *, milliseconds: int) -> Figures:
    """Jobs per second of handlers that wait so long, 32 at once, by one worker process."""
    best = CONCURRENCY * 1000 / milliseconds
    events = min(sizes.events, round(best * sizes.handler_seconds))
    await fill(stage, events, "bulk", sizes.at_once)
    target = f"bench.contestants.waiting:Waiting{milliseconds}"
    return {f"handlers_{milliseconds}": await drained(stage, events, 1, target)}


async def fill(stage: Stage, events: int, published: Published, at_once: int) -> None:
    """A backlog of single publishes, many at once, or of bulks, that the store shows."""
    await publish_backlog(stage, events, published, at_once)
    await verify(stage, Counts(waiting=events, done=0))


async def publish_backlog(stage: Stage, events: int, published: Published, at_once: int) -> None:
    """The same. Nothing is counted yet: a store may be slow when it is asked for the first time."""
    if published == "single":
        async with joined(stage, at_once) as publishers:
            await publish_each(publishers, [stamped() for _ in range(events)])
    else:
        for start in range(0, events, BULK):
            number = min(BULK, events - start)
            await stage.contestant.publish_bulk([stamped() for _ in range(number)])


@asynccontextmanager
async def joined(stage: Stage, number: int) -> AsyncIterator[list[Joining]]:
    """Publishers with connections of their own, or one that all share."""
    async with AsyncExitStack() as opened:
        publishers: list[Joining] = []
        while len(publishers) < number:
            publisher = cast(Joining, load(stage.target)(stage.url))
            await publisher.join()
            opened.push_async_callback(publisher.teardown)
            publishers += [publisher] * (number if publisher.shared else 1)
        yield publishers


async def publish_each(publishers: list[Joining], payloads: list[bytes]) -> None:
    """Each payload in a publish of its own, by whichever publisher is free first."""
    waiting = iter(payloads)

    async def run(publisher: Joining) -> None:
        for payload in waiting:
            await publisher.publish(payload)

    await asyncio.gather(*map(run, publishers))
