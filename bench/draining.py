"""Draining a large backlog, 500 jobs at a time, while somebody else's snapshot is held open or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import psycopg

import holdfast

from .consuming import Published, fill
from .contestants.holdfast_ import CHANNEL, CONSUMER
from .measures import Figures, LostEventsError, Stage
from .sizes import Sizes

CLAIM = 500
WINDOW = 100_000
"""Jobs whose rate is compared: the first so many and the last, or a quarter of a small backlog."""
PATIENCE = 30.0
"""Seconds of empty polls after which jobs are missing."""
DEAD = "SELECT coalesce(sum(n_dead_tup), 0)::bigint FROM pg_stat_user_tables"


async def drain(stage: Stage, sizes: Sizes, *, published: Published, held: bool) -> Figures:
    """The rates of the first and the last jobs, and how many dead row versions there are afterwards."""
    count = sizes.count if published == "bulk" else sizes.single_count
    window = min(WINDOW, count // 4)
    await fill(stage, count, published, sizes.at_once)
    await stage.settle()
    async with await psycopg.AsyncConnection.connect(stage.url, autocommit=True) as connection:
        before = await _dead_tuples(connection)
        async with snapshot(stage.url) if held else nullcontext():
            done, times = await _drain(stage.url, count)
            dead = await _dead_tuples(connection) - before
    early = next(place for place, number in enumerate(done) if number >= window)
    late = next(place for place, number in enumerate(done) if number >= count - window)
    first = done[early] / (times[early] - times[0])
    last = (done[-1] - done[late]) / (times[-1] - times[late])
    name = f"{'held' if held else 'free'}_{published}"
    return {
        f"first_{name}": first,
        f"last_{name}": last,
        f"last_to_first_{name}": last / first,
        f"dead_{name}": 1000 * dead / count,
    }


async def _drain(url: str, count: int) -> tuple[list[int], list[float]]:
    """How many were done after each batch, and when. A finalize that the store refuses raises.

    Jobs are counted here: a store may take longer to count so many than its client waits.
    """
    async with holdfast.connect(url) as bus:
        done, times = [0], [time.perf_counter()]
        while done[-1] < count:
            jobs = await bus.poll(CHANNEL, CONSUMER, limit=CLAIM)
            if jobs:
                await bus.finalize_many(jobs, success=True)
                done.append(done[-1] + len(jobs))
                times.append(time.perf_counter())
            elif time.perf_counter() - times[-1] > PATIENCE:
                raise LostEventsError(f"{done[-1]} jobs of {count} could be claimed")
            else:
                await asyncio.sleep(0.01)
        if done[-1] > count or await bus.poll(CHANNEL, CONSUMER):
            raise LostEventsError(f"more than {count} jobs could be claimed")
    return done, times


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[None]:
    """A transaction that could still read everything as it is now."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        await connection.execute("SELECT pg_current_snapshot()")
        yield
        await connection.execute("ROLLBACK")


async def _dead_tuples(connection: psycopg.AsyncConnection) -> int:
    """Of all tables, as the server has counted them; once that stands still.

    A connection that ends hands in what it has counted, a little later.
    """
    seen = -1
    while True:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        row = await (await connection.execute(DEAD)).fetchone()
        assert row is not None
        if row[0] == seen:
            return seen
        seen = row[0]
        await asyncio.sleep(1)
